"""Progress of generation on stderr: a live line in a terminal, else a plain line now and then."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

_BETWEEN_LINES = 10.0  # seconds


class AnswerLines:
    """How many conversations and answer tokens are complete, and tokens per second since the start."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), Elapsed())
        self._progress = Progress(*columns, console=self._console, disable=quiet or not self._console.is_terminal)
        self._task = self._progress.add_task("Answering")
        self._start = self._said = time.monotonic()

    def __enter__(self) -> AnswerLines:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, conversations: int, tokens: int) -> None:
        """Called as often as one likes."""
        now = time.monotonic()
        if self._console.is_terminal:
            self._progress.update(self._task, description=self._line(conversations, tokens))
        elif now - self._said >= _BETWEEN_LINES:
            self._said = now
            self._console.print(self._line(conversations, tokens), highlight=False)

    def end(self, conversations: int, tokens: int) -> None:
        """The last line, which stays."""
        self._console.print(self._line(conversations, tokens), highlight=False)

    def _line(self, conversations: int, tokens: int) -> str:
        rate = tokens / max(time.monotonic() - self._start, 1e-9)
        return f"{conversations:,} conversations, {tokens:,} answer tokens, {rate:,.0f} tokens/s"
