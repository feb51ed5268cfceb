"""What a run shows in the terminal, on stderr: a bar in terminals, a line per block elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from overdrive.bench.client import Sample
from overdrive.bench.plan import Block


class Display:
    """Progress of a run. Use it in a `with` block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, *times, console=self._console)
        self._task = self._progress.add_task("Warming up", total=None)
        self._where = ""
        self._answers = self._errors = 0

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._progress.print(line, highlight=False, soft_wrap=True, markup=False)

    def block(self, block: Block, total: int) -> None:
        """This block begins."""
        self._where = f"load {block.load:g} · {block.arm.name} · repeat {block.repeat + 1}"
        self._answers = self._errors = 0
        self._progress.update(self._task, description=self._where, completed=block.number, total=total)
        if not self._console.is_terminal:
            self.say(f"block {block.number + 1} of {total}: {self._where}")

    def answer(self, sample: Sample) -> None:
        """An answer has come."""
        self._answers += 1
        self._errors += bool(sample.error)
        failed = f", {self._errors} failed" if self._errors else ""
        self._progress.update(self._task, description=f"{self._where} · {self._answers} answers{failed}")
