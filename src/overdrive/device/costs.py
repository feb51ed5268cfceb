"""From timed steps to a table of costs: which steps are timed, in which order, and what stands between them.

Knows a rehearsal and numbers; must never know a device or a drafter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median

import numpy as np

from overdrive.device.rehearsal import Rehearsal, Timed
from overdrive.errors import OverdriveError
from overdrive.policy.cost import CostTable
from overdrive.policy.decoding import DecodeCosts

Tell = Callable[[int, int], None]
"""Told how many of how many visits are over."""

WAY = 2
"""Of measuring. It rises with every change of what is measured: tables on disk made in another one are left."""

ROUNDS = (2, 3)
"""Steps that are timed at each visit to a size, behind one that is not: five in all, some of them later."""

BUSY_LOAD, BUSY_SCATTER = 1.25, 1.5
"""Processes for each processor, and `Measured.scatter`, above which costs are in doubt. On two cores measuring alone
comes to 0.7 and 1.05; beside two processes that compute all the time to 1.7, and to 1.25 where they come and go."""

FAR = 1 << 20
"""Positions of a row up to which a step's time is said to rise as memory is read."""

FEWEST = 2
"""Sizes that are timed however long they take: one alone tells nothing of the others."""


@dataclass(frozen=True, slots=True)
class CostSizes:
    """Which steps a device wants timed.

    rows: ascending. most_tokens: of one step, drafts included. short: positions before a row's newest token, wherever
    context is not what is measured. long: where it is; `texts` rows have a text of their own then, which has to be
    read first, and `long_rows` share them. seconds: about how long the others may take;
    context may take half as long again. padded: all drafts that a plan asks
    for are fed, offered or not, so that every K and number of rows is a shape whose costs are its own.
    """

    rows: tuple[int, ...]
    most_tokens: int
    short: int
    long: int
    texts: int
    long_rows: int
    seconds: float
    padded: bool


class NoRoom(OverdriveError):
    """Rows, context and KV cache are too small for two steps to be compared."""


def assumed_costs(plans: Sequence[int]) -> CostTable:
    """A guess, where nothing could be measured: a step that is half fixed, half tokens at 32 of them, and drafts at a
    twentieth of it each."""
    seconds = np.array([[0.01 * (1 + tokens / 32)] for tokens in (1, 256)])
    return CostTable([1, 256], [0], seconds, [1], plans, np.array([[0.0005 * k] for k in plans]))


def whole_pages(positions: int, page_size: int) -> int:
    """The most of `positions` that fill pages, one page at least."""
    return max(1, positions // page_size) * page_size


def typical(seconds: Iterable[float]) -> float:
    """The lower quartile: whatever else the machine does makes steps longer and none shorter."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]


@dataclass(slots=True)
class Cell:
    """Steps of so many rows and drafts, and what was found of them."""

    rows: int
    drafts: int
    found: list[Timed] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Most tokens of such a step."""
        return self.rows * (self.drafts + 1)

    @property
    def draft(self) -> float:
        """Seconds."""
        return typical(timed.draft for timed in self.found)

    @property
    def rest(self) -> float:
        """Seconds."""
        return typical(timed.rest for timed in self.found)

    @property
    def whole(self) -> float:
        """Seconds."""
        return typical(timed.draft + timed.rest for timed in self.found)

    @property
    def scatter(self) -> float:
        """The upper quartile of its steps' seconds over the lower one: 1 where all took the same."""
        seconds = sorted(timed.draft + timed.rest for timed in self.found)
        return seconds[3 * len(seconds) // 4] / max(typical(seconds), 1e-9)


@dataclass(frozen=True, slots=True)
class Measured:
    """scatter: of steps of one size, the median over sizes; `Cell.scatter`."""

    table: CostTable
    scatter: float

    def doubt(self, load: float) -> str:
        """Why the table may be that of a slower machine, in one line; "" where nothing speaks for it.

        load: processes that wanted to run while it was measured, for each of the machine's processors.
        """
        if load > BUSY_LOAD:
            return f"step costs were measured on a busy machine: {load:.1f} processes wanted each of its processors"
        if self.scatter > BUSY_SCATTER:
            return (
                f"step costs were measured on a busy machine: equal steps took up to {self.scatter:.1f} times as long"
            )
        return ""


def measure_costs(rehearsal: Rehearsal, sizes: CostSizes, plans: Sequence[int], tell: Tell) -> Measured:
    """The costs of steps with each of `plans` drafts, and with none. Raises NoRoom where not two sizes fit."""
    deadline = time.perf_counter() + sizes.seconds
    steps = 1 + max(ROUNDS)
    cells = [Cell(rows, drafts) for rows in sizes.rows for drafts in (0, *plans)]
    cells = [c for c in cells if c.tokens <= sizes.most_tokens]
    cells = [c for c in cells if rehearsal.fits(c.rows, c.drafts, steps, sizes.short, 1)]
    cells.sort(key=lambda cell: (cell.tokens, cell.rows))
    if len({cell.tokens for cell in cells}) < FEWEST:
        raise NoRoom("costs cannot be measured: rows, context and KV cache leave no room for it")
    rehearsal.read(sizes.short, 1)
    _visit(rehearsal, sizes, _coarse_first(cells), deadline, tell)
    measured = [cell for cell in cells if cell.found]
    longer = _longer(rehearsal, sizes, measured, plans, deadline)
    return Measured(_table(measured, longer, sizes), median(cell.scatter for cell in measured))


def _coarse_first(cells: list[Cell]) -> list[Cell]:
    """The two smallest, then every fourth, then those between: where time runs out, what was timed is spread out."""
    order = (*range(FEWEST), *range(0, len(cells), 4), *range(2, len(cells), 4), *range(1, len(cells), 2))
    return [cells[at] for at in dict.fromkeys(order) if at < len(cells)]


def _visit(rehearsal: Rehearsal, sizes: CostSizes, cells: list[Cell], deadline: float, tell: Tell) -> None:
    """Time every cell in turn, and all again; none that would take longer than what is left, but the first."""
    for number, count in enumerate(ROUNDS):
        for place, cell in enumerate(cells):
            tell(number * len(cells) + place, len(ROUNDS) * len(cells))
            expected = (1 + count) * _expected(cells, cell)
            if time.perf_counter() + expected > deadline and (number or place >= FEWEST):
                continue
            cell.found += rehearsal.decode(cell.rows, cell.drafts, 1 + count, sizes.short, 1)[1:]
    tell(1, 1)


def _expected(cells: Iterable[Cell], cell: Cell) -> float:
    """Seconds of a step of this cell at most, as smaller ones tell: never more than in proportion to its tokens."""
    known = [other for other in cells if other.found and other.tokens <= cell.tokens]
    nearest = max(known, key=lambda other: other.tokens, default=None)
    return nearest.whole * cell.tokens / nearest.tokens if nearest else 0.0


def _longer(
    rehearsal: Rehearsal, sizes: CostSizes, cells: Sequence[Cell], plans: Sequence[int], deadline: float
) -> list[tuple[Cell, Cell]]:
    """The same steps behind short and long texts: many rows without drafts, first, and, where drafts are fed by plan,
    one and many with every K. Empty where there is no room or no time; what steps cost while serving will tell."""
    steps, first = 1 + max(ROUNDS), (sizes.long_rows, 0)
    others = [(rows, k) for k in (0, *plans) for rows in (1, sizes.long_rows)] if sizes.padded else []
    shapes = [each for each in dict.fromkeys([first, *others]) if rehearsal.fits(*each, steps, sizes.long, sizes.texts)]
    largest = max(cells, key=lambda cell: cell.tokens)
    a_token = largest.whole / largest.tokens
    reading = a_token * sizes.texts * sizes.long
    if first not in shapes or time.perf_counter() + reading > deadline + sizes.seconds / 2:
        return []

    def timed(context: int, texts: int) -> list[Cell]:
        found = [Cell(*shapes[0], rehearsal.decode(*shapes[0], steps, context, texts)[1:])]
        for rows, k in shapes[1:]:
            usual = a_token * rows * (1 + k) * 2 * steps
            if time.perf_counter() + usual < deadline + sizes.seconds:
                found.append(Cell(rows, k, rehearsal.decode(rows, k, steps, context, texts)[1:]))
        return found

    short = timed(sizes.short, 1)
    rehearsal.read(sizes.long, sizes.texts)
    rehearsal.decode(*shapes[0], steps, sizes.long, sizes.texts)  # what has just read is hot, and slower for a while
    long = {(cell.rows, cell.drafts): cell for cell in timed(sizes.long, sizes.texts)}
    return [(cell, long[cell.rows, cell.drafts]) for cell in short if (cell.rows, cell.drafts) in long]


def _table(cells: Sequence[Cell], longer: Sequence[tuple[Cell, Cell]], sizes: CostSizes) -> CostTable:
    """The grids. Sizes that several cells have, such as 4 rows of 1 token and 1 row of 4, are taken together."""
    apart = sizes.long - sizes.short
    more = longer[0][1].rest - longer[0][0].rest if longer else 0.0
    context_cost = max(0.0, more / (sizes.long_rows * apart))  # of one position that a row attends to
    found: dict[int, list[float]] = {}
    for cell in cells:
        for timed in cell.found:
            found.setdefault(timed.tokens, []).append(max(timed.rest / 2, timed.rest - context_cost * timed.context))
    tokens = sorted(found)
    bare = np.array([typical(found[n]) for n in tokens])
    contexts = [0, sizes.long_rows * sizes.long]
    drafting = [cell for cell in cells if cell.drafts]
    ks, rows = sorted({cell.drafts for cell in drafting}), sorted({cell.rows for cell in drafting})
    return CostTable(
        tokens,
        contexts,
        bare[:, None] + context_cost * np.array(contexts),
        rows,
        ks,
        _draft_grid({(cell.drafts, cell.rows): cell.draft for cell in drafting}, ks, rows),
        decode=_decode_costs(cells, longer, sizes) if sizes.padded else None,
    )


def _decode_costs(cells: Sequence[Cell], longer: Sequence[tuple[Cell, Cell]], sizes: CostSizes) -> DecodeCosts | None:
    """Of those Ks that one row and many were timed with behind both lengths of text, if there are any."""
    rows: dict[int, list[int]] = {}
    grids: tuple[dict[int, np.ndarray], dict[int, np.ndarray]] = {}, {}
    for k in sorted({short.drafts for short, _ in longer}):
        timed = sorted((cell for cell in cells if cell.drafts == k), key=lambda cell: cell.rows)
        pairs = {short.rows: (short, long) for short, long in longer if short.drafts == k}
        if not timed or not {1, sizes.long_rows} <= pairs.keys():
            continue
        rows[k] = [cell.rows for cell in timed]
        for grid, seconds in zip(grids, (_DRAFT, _REST), strict=True):
            rises = {number: seconds(long) - seconds(short) for number, (short, long) in pairs.items()}
            bare = np.array([seconds(cell) for cell in timed])
            grid[k] = bare[:, None] + _rises(rises[1], rises[sizes.long_rows], rows[k], sizes)
    return DecodeCosts([sizes.short, sizes.long, FAR], rows, *grids) if rows else None


def _rises(one: float, many: float, rows: Sequence[int], sizes: CostSizes) -> np.ndarray:
    """[rows, 3] seconds that steps take longer behind short, long and endless texts.

    one, many: behind long ones, of one row and of `long_rows`. What one row takes longer is mostly waiting for a chain
    of loads, to which other rows add nothing, and which ends where all of the device takes part; from there to many
    rows, and behind longer texts, time goes on as memory is read.
    """
    one, count = max(0.0, one), sizes.long_rows
    a_row = max(0.0, many - one) / (count - 1) if count > 1 else one
    long = one + a_row * (np.array(rows) - 1)
    endless = long + a_row / (sizes.long - sizes.short) * np.array(rows) * (FAR - sizes.long)
    return np.stack([np.zeros(len(rows)), long, endless], axis=1)


_DRAFT, _REST = attrgetter("draft"), attrgetter("rest")


def _draft_grid(found: dict[tuple[int, int], float], ks: Sequence[int], rows: Sequence[int]) -> np.ndarray:
    """[ks, rows] seconds. What was not timed grows with K as it does for fewer rows."""
    grid = np.zeros((len(ks), len(rows)))
    for i, k in enumerate(ks):
        for j, row in enumerate(rows):
            if (k, row) in found:
                grid[i, j] = found[k, row]
            elif not i:  # nothing of fewer drafts either
                grid[i, j] = grid[i, j - 1] * row / rows[j - 1] if j else 0.0
            else:
                growth = grid[i, j - 1] / grid[i - 1, j - 1] if j and grid[i - 1, j - 1] else k / ks[i - 1]
                grid[i, j] = grid[i - 1, j] * growth
    return grid
