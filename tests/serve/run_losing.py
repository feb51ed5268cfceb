"""`overdrive serve` around a real engine that loses its device: run_losing.py MODEL PORT TEMPLATE TIMEOUT.

MODEL is a folder without weights. A file `fault` in it says how the device is lost: "gone" on the CPU, "assert" or
"stray" on a GPU; "plan" is a controller that breaks instead. The first engine process takes the file away and has that
fault in its eleventh step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from overdrive.cli import report
from overdrive.config import DeviceOptions, DraftOptions, EngineOptions, ModelOptions, ServerOptions
from overdrive.serve.process import run_engine
from overdrive.serve.server import serve

sys.path.insert(0, str(Path(__file__).parents[2]))


def gone() -> None:
    raise RuntimeError("the device is gone")


def failed_assertion() -> None:
    import torch

    torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))


def stray_write() -> None:
    import torch

    from tests.device.cuda.stray_kernel import stray

    stray[(1,)](torch.zeros(1, device="cuda"), 1 << 44)


FAULTS: dict[str, Callable[[], None]] = {"gone": gone, "assert": failed_assertion, "stray": stray_write}


def lose_device(fault: str) -> None:
    """Have every runner launch the fault behind its eleventh step. A lost CPU cannot be used again either."""
    from overdrive.device.cuda.runner import CudaRunner
    from overdrive.device.runner import Runner

    runner, steps = Runner if fault == "gone" else CudaRunner, count()
    absorb = runner.absorb

    def absorb_and_lose(self, flight) -> None:
        absorb(self, flight)
        if next(steps) == 10:
            self._stream.launch(FAULTS[fault])

    runner.absorb = absorb_and_lose
    if fault == "gone":
        Runner.recover = lambda self: gone()


def lose_controller() -> None:
    """Have every controller break in its eleventh step."""
    from overdrive.policy.lever import Lever

    choose, steps = Lever.choose, count()

    def choose_and_break(self, view):
        if next(steps) == 10:
            raise KeyError("no such cost")
        return choose(self, view)

    Lever.choose = choose_and_break


def run(model: str, options: EngineOptions, address: str) -> None:
    told = Path(model) / "fault"
    if told.exists():
        fault = told.read_text()
        told.unlink()
        lose_controller() if fault == "plan" else lose_device(fault)
    run_engine(model, options, address)


if __name__ == "__main__":
    model, port, template, timeout = sys.argv[1:]
    on_cpu = (Path(model) / "fault").read_text() in ("gone", "plan")
    options = EngineOptions(
        model=ModelOptions(load_format="dummy", chat_template=template, precision="float32"),
        device=DeviceOptions(device="cpu" if on_cpu else "cuda"),
        draft=DraftOptions(draft="ngram", speculation="fixed"),  # no steps before the first request
    )
    with report():
        serve(model, options, ServerOptions(port=int(port), engine_timeout=float(timeout)), target=run)
