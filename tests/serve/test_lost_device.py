"""A device that is lost for its process: requests under way get an error, and another process takes over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.llm.conftest import write_tiny

from .test_server import Running

FAULTS = [
    pytest.param("gone", marks=pytest.mark.slow),
    pytest.param("plan", marks=pytest.mark.slow),
    pytest.param("assert", marks=pytest.mark.cuda),
    pytest.param("stray", marks=pytest.mark.cuda),
]
SIZES = {"hidden_size": 256, "intermediate_size": 512}  # heads as wide as a GPU's kernels want them


PLAN = "planning a step failed: KeyError: 'no such cost'"


class Losing(Running):
    """A server whose first engine process loses its device in its eleventh step."""

    SCRIPT = Path(__file__).with_name("run_losing.py")


@pytest.fixture(params=FAULTS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Losing]:
    write_tiny(tmp_path, **SIZES)
    (tmp_path / "fault").write_text(request.param)
    running = Losing(str(tmp_path), tmp_path)
    running.fault = request.param
    yield running
    running.process.kill()
    running.process.communicate()
    running.scratch.cleanup()


def stream(server: Losing) -> tuple[str, list[str]]:
    """The text of one answer as far as it came, and the errors that ended it."""
    body = {
        "model": server.model,
        "prompt": "the cat",
        "max_tokens": 60,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    text, errors, lines = "", [], []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    for event in map(json.loads, lines):
        errors += [event["error"]["message"]] if "error" in event else []
        text += "".join(choice["text"] for choice in event.get("choices", ()))
    return text, errors


def test_an_engine_that_loses_its_device_is_followed_by_another(server: Losing) -> None:
    server.wait_ready()
    part, errors = stream(server)
    assert len(errors) == 1 and ("device" if server.fault != "plan" else PLAN) in errors[0]
    while httpx.get(f"{server.url}/ready").status_code != 200:
        assert server.process.poll() is None
        time.sleep(0.05)
    whole, errors = stream(server)
    assert not errors and part and whole.startswith(part)
    counted = httpx.get(f"{server.url}/metrics").text
    assert "overdrive_engine_restarts_total 1.0" in counted and "overdrive_engine_hangs_total 0.0" in counted
    server.process.send_signal(signal.SIGTERM)
    code, told = server.end()
    assert code == 0
    if server.fault == "plan":
        assert f"{PLAN}; starting it again" in told and "in choose_and_break" in told, "what broke, and where"
    else:
        assert "the device is lost" in told and "Traceback" not in told
