"""What a training run says: a bar in terminals and plain lines elsewhere, history.jsonl, and the table at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from overdrive.train.evaluate import Tally, overall
from overdrive.train.trainer import Position


class History:
    """history.jsonl: a line per measurement, so that acceptance can be drawn against tokens seen.

    Lines of steps behind `step`, where this sitting begins, are dropped: they will be measured again.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= step] if step else []
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def add(self, position: Position, **values: Any) -> None:
        """One line: where the run stands, and whatever was measured there."""
        where = {"step": position.step, "tokens": position.tokens, "answer_tokens": position.answers}
        line = where | {"epoch": position.epoch, "seconds": round(position.seconds, 1)} | values
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _step(line: str) -> float:
    """Of a line of history; behind every step for one that was cut off when the machine went down."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Pace:
    """Tokens trained on per second since the last look."""

    def __init__(self, position: Position) -> None:
        self._position, self._tokens, self._clock = position, position.tokens, time.monotonic()

    def tokens_per_second(self) -> float:
        tokens, seconds = self._position.tokens - self._tokens, time.monotonic() - self._clock
        self._tokens, self._clock = self._position.tokens, time.monotonic()
        return tokens / max(seconds, 1e-9)


class Display:
    """Progress on stderr. Use it in a `with` block."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, *times, console=self._console)
        self._task = self._progress.add_task("Training", total=1.0)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._progress.print(line, highlight=False, soft_wrap=True)

    def step(self, position: Position, done: float, loss: float, tokens_per_second: float) -> None:
        """done: share of the run that is over. tokens_per_second: trained on, over the latest steps."""
        text = f"step {position.step} · loss {loss:.4f} · {tokens_per_second / 1000:.1f}K tokens/s"
        self._progress.update(self._task, completed=done, description=text)
        if not self._console.is_terminal:
            seen = f"{position.tokens / 1e6:.2f}M tokens · {position.seconds:.0f} s"
            self.say(f"{text} · {100 * done:.1f} % · epoch {position.epoch} · {seen}")


def summary(tally: Tally) -> dict[str, Any]:
    """A tally's figures as history.jsonl and result.json hold them."""
    return {
        "acceptance": [round(value, 4) for value in tally.acceptance],
        "tokens_per_round": {str(k): round(value, 4) for k, value in enumerate(tally.per_round, 1)},
        "measured_tokens": tally.tokens,
    }


def in_words(tally: Tally) -> str:
    """One line."""
    positions = " ".join(f"{value:.3f}".removeprefix("0") for value in tally.acceptance)
    rounds = ", ".join(f"{value:.2f}" for value in tally.per_round)
    return f"held-out acceptance {positions} · tokens per round {rounds} (chains of 1 .. {len(tally.per_round)})"


def table(tallies: Mapping[str, Tally]) -> Table:
    """Acceptance per position and tokens per round, a row per category and one for all of them."""
    total = overall(tallies)
    table = Table(title="Held-out acceptance per position, and tokens per round by length of the chain")
    table.add_column("category")
    for position in range(1, len(total.offered) + 1):
        table.add_column(str(position), justify="right")
    for chain in range(1, len(total.rounds) + 1):
        table.add_column(f"K={chain}", justify="right")
    table.add_column("tokens", justify="right")
    for name, tally in [*tallies.items(), ("all", total)]:
        figures = [f"{value:.3f}".removeprefix("0") for value in tally.acceptance]
        rounds = [f"{value:.2f}" for value in tally.per_round]
        table.add_row(name or "(none)", *figures, *rounds, str(tally.tokens), end_section=name != "all")
    return table
