"""The server under a soak run: a process of its own, whose engine can be found, measured and killed. Linux alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
SMALL = {"load-format": "dummy", "precision": "float32", "kv-tokens": 12_000, "max-rows": 24, "max-model-len": 1024}
START_SECONDS = 180.0


class Server:
    """`overdrive serve` on loopback; use it as a context manager, which ends it whatever happens."""

    def __init__(self, model: str, folder: Path, options: list[str]) -> None:
        """model: "tiny" for random weights over bytes. folder: for its files. options: of `overdrive serve`."""
        if model == "tiny":
            (folder / "config.json").write_text(json.dumps(TINY))
            (folder / "template.jinja").write_text(TEMPLATE)
            small = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
            model, options = str(folder), [*small, "--chat-template", str(folder / "template.jinja"), *options]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = ["--port", str(port), "--served-model-name", "soak", "--max-restarts", "1000000"]
        given += [*([] if "--engine-timeout" in options else ["--engine-timeout", "10"]), *options]
        self._log = (folder / "server.log").open("wb")
        quiet = {"stdout": self._log, "stderr": self._log, "stdin": subprocess.DEVNULL}
        self._process = subprocess.Popen([sys.executable, "-m", "overdrive.cli", "serve", model, *given], **quiet)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._log.close()

    @property
    def log_bytes(self) -> int:
        """What it has written to its log."""
        return Path(self._log.name).stat().st_size

    def wait_until_ready(self) -> None:
        """Returns when it serves. Raises RuntimeError, with the end of its log, when it does not."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the server does not start:\n{Path(self._log.name).read_text()[-2000:]}")

    def info(self) -> dict[str, Any]:
        """What the server tells of itself."""
        facts: dict[str, Any] = httpx.get(f"{self.url}/server_info").raise_for_status().json()
        return facts

    def engine_pid(self) -> int:
        """The engine's process: the child that was spawned to run a target."""
        for child in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for pid in map(int, child.read_text().split()):
                if b"--multiprocessing-fork" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        raise RuntimeError("the server has no engine now")

    def kill_engine(self) -> None:
        """As the system does where memory ends."""
        os.kill(self.engine_pid(), signal.SIGKILL)

    def stop_engine(self) -> None:
        """It lives, and does nothing any more."""
        os.kill(self.engine_pid(), signal.SIGSTOP)

    def resident(self) -> dict[str, float]:
        """MiB of memory of the HTTP process and of the engine."""
        return {"server": _resident(self._process.pid), "engine": _resident(self.engine_pid())}

    def drain(self, seconds: float) -> int:
        """SIGTERM; the exit code. Raises subprocess.TimeoutExpired when it does not end in time."""
        self._process.terminate()
        return self._process.wait(seconds)


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024
