"""The verdict in words: which arm wins at which load, by how much, and whether the spread allows the claim.

Two names of arms mean something: "off" (no speculation) and "auto" (the server decides). Knows figures, draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.bench.ratios import Table

OFF, AUTO = "off", "auto"
BUSY = 0.5  # load average per core before a run that is worth a word
WORTH_SAYING = 0.02  # shares of cached prompts that differ by more are named


def load_words(mode: str, load: float) -> str:
    """A load as readers know it."""
    words = {"ramp": "on a ramp to {:g} users", "trace": "on the trace at {:g} times its speed"}
    return words.get(mode, "{:g} at once").format(load)


def verdict(table: Table) -> list[str]:
    """Sentences, the most important first."""
    if not table.cells:
        return ["Nothing was measured to its end, so there is no verdict."]
    sentences = [*_broken(table)]
    if len(table.arms) < 2:
        return [*sentences, "Only one arm was measured, so there is nothing to compare."]
    sentences += [*_auto(table), *_by_load(table), *_crossing(table)]
    return sentences


def _broken(table: Table) -> Iterator[str]:
    if table.results.ended:
        whole, wanted = len(table.results.blocks), _wanted(table)
        yield f"Unfinished: {table.results.ended}. These figures are of {whole} of {wanted} blocks."


def _wanted(table: Table) -> int:
    run = table.results.run
    return len(run["arms"]) * len(run["loads"]) * run["repeats"]


def _by_load(table: Table) -> Iterator[str]:
    """Who wins: only an arm that is shown to be faster than every other. Else who leads, and what is shown of it."""
    mode = str(table.results.run.get("mode"))
    for load in table.results.loads:
        best = table.best(load, table.arms)
        ratios = {arm: ratio for arm in table.arms if arm != best and (ratio := table.ratio(best, arm, load))}
        if not ratios:
            continue
        where = load_words(mode, load).capitalize()
        speed = f"{table.median(best, load):.0f} tokens/s"
        second = table.best(load, list(ratios))
        close = [arm for arm, ratio in ratios.items() if ratio.word != "faster"]
        if not close:
            yield f"{where}: {best} wins with {speed}, {ratios[second]} over {second}."
        elif ratios[second].repeats < 2:
            middle = ratios[second].middle
            yield f"{where}: {best} leads with {speed}, {middle:.3f}x {second}, but one repeat shows no spread."
        else:
            near = table.best(load, close)
            also = f" {best} beats off: {ratios[OFF]}." if OFF in ratios and OFF not in close else ""
            tie = f"{best} ({speed}) is too close to {near} for the spread to name a winner: {ratios[near]}."
            yield f"{where}: {tie}{also}"


def _crossing(table: Table) -> Iterator[str]:
    """The loads at which a fixed number of drafts beats "off", as far as the spread allows to claim it."""
    fixed = [arm for arm in table.arms if arm not in (OFF, AUTO)]
    if OFF not in table.arms or not fixed or len(table.results.loads) < 2:
        return
    pays = [load for load in table.results.loads if any(_faster(table, arm, load) for arm in fixed)]
    mode = str(table.results.run.get("mode"))
    if not pays:
        yield "No fixed number of drafts was shown to beat off at any load here."
    elif pays == table.results.loads:
        yield "Some fixed number of drafts was shown to beat off at every load here."
    else:
        where = ", ".join(_at(mode, load) for load in pays)
        yield f"Fixed drafts were shown to beat off {where}, and at no other load here."


def _faster(table: Table, arm: str, load: float) -> bool:
    ratio = table.ratio(arm, OFF, load)
    return ratio is not None and ratio.word == "faster"


def _auto(table: Table) -> Iterator[str]:
    """What the server's own decisions gained and lost."""
    others = [arm for arm in table.arms if arm != AUTO]
    if AUTO not in table.arms:
        return
    mode = str(table.results.run.get("mode"))
    to_best, to_off = [], []
    for load in table.results.loads:
        best = table.best(load, others)
        if best and (ratio := table.ratio(AUTO, best, load)):
            to_best.append(f"{ratio} of {best} {_at(mode, load)}")
        if OFF in others and (ratio := table.ratio(AUTO, OFF, load)):
            to_off.append(f"{ratio} {_at(mode, load)}")
    if to_best and others != [OFF]:  # beside off alone, both lines would be the same
        yield f"auto beside the best other arm of each load: {'; '.join(to_best)}."
    if to_off:
        yield f"auto beside off: {'; '.join(to_off)}."


def _at(mode: str, load: float) -> str:
    words = load_words(mode, load)
    return f"with {words}" if mode not in ("ramp", "trace") else words


def warnings(table: Table) -> list[str]:
    """What readers must know before they believe the figures."""
    return [
        *table.results.notes,
        *_busy(table),
        *_errors(table),
        *_spread_unknown(table),
        *_ignored(table),
        *_cache(table),
    ]


def _busy(table: Table) -> Iterator[str]:
    machine = table.results.run.get("machine", {})
    load, cores = machine.get("load_average") or 0.0, machine.get("cores") or 1
    if load > BUSY * cores:
        yield f"The machine was busy before the run (load average {load:g} on {cores} cores); spread is large then."


def _errors(table: Table) -> Iterator[str]:
    for arm in table.arms:
        blocks = [block for block in table.results.blocks if block.arm == arm]
        failed = [sample.error for block in blocks for sample in block.samples if sample.error]
        if failed:
            most = max(set(failed), key=failed.count)
            total = sum(len(block.samples) for block in blocks)
            yield f"arm {arm}: {len(failed)} of {total} requests failed, most often with: {most}"
        if any(block.samples and all(sample.error for sample in block.samples) for block in blocks):
            yield f"arm {arm}: a block in which every request failed counts as no tokens at all."
    if table.results.lost:
        yield f"{table.results.lost} answers belong to a block that was not finished; no figure holds them."


def _spread_unknown(table: Table) -> Iterator[str]:
    repeats = {len(cell) for cell in table.cells.values()}
    if repeats and min(repeats) < 3:
        yield "Fewer than three repeats somewhere: intervals there are wide or missing, and few claims can be made."
    short = sorted({load for (_, load), cell in table.cells.items() if any(not one.steady for one in cell.values())})
    if table.closed and short:
        loads = ", ".join(f"{load:g}" for load in short)
        yield f"At load {loads} some blocks were too short for a steady part; theirs is the throughput of all of it."


def _ignored(table: Table) -> Iterator[str]:
    """Arms that ask for fewer drafts than the server says it made, and answers longer than allowed."""
    for arm in table.results.run["arms"]:
        blocks = [block for block in table.results.blocks if block.arm == arm["name"]]
        samples = [sample for block in blocks for sample in block.samples if not sample.error]
        wish = arm["body"].get("speculation")
        wish = wish if isinstance(wish, dict) else {}
        most = 0 if wish.get("enabled") is False else wish.get("max_drafts")
        if most is not None and any(one.accepted + one.rejected > most * max(1, one.rounds) for one in samples):
            yield f"arm {arm['name']}: the server drafted more than {most} per step; it ignores what the arm asks for."
        if longer := sum(one.output_tokens > one.max_tokens for one in samples):
            yield f"arm {arm['name']}: {longer} answers are longer than max_tokens; the server ignores it."


def _cache(table: Table) -> Iterator[str]:
    for load in table.results.loads:
        shares = {arm: max((one.cached_share for one in table.at(arm, load)), default=0.0) for arm in table.arms}
        if shares and max(shares.values()) - min(shares.values()) > WORTH_SAYING:
            told = ", ".join(f"{arm} {share:.0%}" for arm, share in shares.items())
            yield f"At load {load:g} the arms found different shares of their prompts in the prefix cache: {told}."
