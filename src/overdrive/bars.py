"""Progress in the terminal, on stderr: a bar per phase while a model loads, one bar for a batch of answers."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed


class LoadingBars:
    """One bar per phase of the start. Without a terminal every phase is one plain line; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Elapsed())
        self._progress = Progress(*columns, console=self._console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> LoadingBars:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def update(self, label: str, done: int, total: int) -> None:
        """A phase has begun or moved on; a total of 0 is unknown."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total or None)
            if not self._console.is_terminal:
                self._console.print(label, highlight=False)
        self._progress.update(self._tasks[label], completed=done, total=total or None)


class ProgressLines:
    """How far one piece of work is, as a plain line now and then; for logs and pipes."""

    SECONDS = 2.0  # between two lines

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._next = time.monotonic() + self.SECONDS

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, label: str, done: int, total: int) -> None:
        """As `LoadingBars.update`; work that is soon done says nothing."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + self.SECONDS
            self._console.print(f"{label}: {done} of {total}", highlight=False, soft_wrap=True)


class BatchBar:
    """How many answers of a batch are complete, and tokens per second over all of them. Shown in terminals only."""

    def __init__(self, answers: int, quiet: bool = False) -> None:
        console = Console(stderr=True)
        speed = TextColumn("{task.fields[speed]:.0f} tokens/s")
        columns = (TextColumn("Generating"), BarColumn(), MofNCompleteColumn(), speed, Elapsed())
        self._progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._task = self._progress.add_task("", total=answers, speed=0.0)

    def __enter__(self) -> BatchBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, complete: int, tokens: int) -> None:
        """`complete` answers and `tokens` of output exist by now."""
        seconds = self._progress.tasks[self._task].elapsed or 0.0
        self._progress.update(self._task, completed=complete, speed=tokens / seconds if seconds else 0.0)
