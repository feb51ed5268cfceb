"""The report: one HTML page that needs nothing else, with the verdict first, then plots, figures and settings.

Knows figures and their words; how lines are drawn is `svg.py`, how it looks `report.css`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable
from html import escape
from importlib.resources import files
from typing import Any

from overdrive.bench.figures import Figures, per_token, quantiles, timeline
from overdrive.bench.ratios import Table, first_block
from overdrive.bench.setting import machine_words
from overdrive.bench.svg import Axes, Line, plot, shares
from overdrive.bench.verdict import load_words, verdict, warnings

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
BINS = 60
X_NAMES = {"sweep": "users at once", "mixture": "users at once", "ramp": "users at the peak", "trace": "speed"}
Value = Callable[[Figures], float]


def page(table: Table) -> str:
    """The whole page."""
    run = table.results.run
    title = f"{str(run.get('mode', 'bench')).capitalize()} of {_models(run)}"
    style = files("overdrive.bench").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="facts">{escape(_facts(run))}</p>
{_verdict(table)}
{_warnings(table)}
<h2>Plots</h2>
<div class="plots">{"".join(plots(table))}</div>
<h2>Figures</h2>
<p class="facts">Medians over the repeats, in brackets the lowest and highest. Times in milliseconds.</p>
{_figures(table)}
{_kinds(table)}
<h2>Settings</h2>
{_settings(run)}
</body>
</html>
"""


def _models(run: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(str(arm.get("model")) for arm in run["arms"]))


def _facts(run: dict[str, Any]) -> str:
    machine = run.get("machine", {})
    parts = [str(run.get("date", "")), machine_words(machine), f"{run['repeats']} repeats, arms taking turns"]
    if machine.get("load_average") is not None:
        parts.append(f"load average {machine['load_average']} before the run")
    return " · ".join(parts)


def _verdict(table: Table) -> str:
    broken = " broken" if table.results.ended else ""
    return f'<div class="verdict{broken}">{_each("p", verdict(table))}</div>'


def _warnings(table: Table) -> str:
    lines = warnings(table)
    return f'<h2>Read with this in mind</h2><ul class="warnings">{_each("li", lines)}</ul>' if lines else ""


def _each(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def plots(table: Table) -> list[str]:
    """All figures that the measurement has data for."""
    drawn = [*_over_time(table)]
    if len(table.results.loads) > 1:
        drawn += [*_over_load(table)]
    drawn.append(shares("Steps by planned drafts per row (arm · load)", _plan_rows(table)))
    return [figure for figure in drawn if figure]


def _over_load(table: Table) -> Iterable[str]:
    x = X_NAMES.get(str(table.results.run.get("mode")), "load")
    yield plot("Output tokens per second", _lines(table, lambda one: one.tokens_per_s), Axes(x, "tokens/s", True))
    yield _ratio_plot(table, x)
    first, each = _lines(table, lambda one: 1e3 * one.first.p50), _lines(table, lambda one: 1e3 * one.per_token.p50)
    yield plot("Time to first token, median", first, Axes(x, "ms", True))
    yield plot("Time per output token, median", each, Axes(x, "ms", True))
    rounds = _lines(table, lambda one: one.tokens_per_round)
    yield plot("Tokens per round", rounds, Axes(x, "tokens", True, from_zero=False))


def _lines(table: Table, value: Value) -> list[Line]:
    lines = []
    for colour, arm in enumerate(table.arms):
        cells = ((load, [value(one) for one in table.at(arm, load)]) for load in table.results.loads)
        points = [(load, statistics.median(told), min(told), max(told)) for load, told in cells if told]
        lines.append(Line(arm, points, colour))
    return lines


def _ratio_plot(table: Table, x: str) -> str:
    """All arms but the first over the first, with the interval where there is one."""
    base, lines = table.arms[0], []
    for colour, arm in list(enumerate(table.arms))[1:]:
        ratios = [(load, table.ratio(arm, base, load)) for load in table.results.loads]
        points = [
            (load, one.middle, one.low or one.middle, one.high if math.isfinite(one.high) else one.middle)
            for load, one in ratios
            if one
        ]
        lines.append(Line(arm, points, colour))
    return plot(f"Throughput over that of {base}", lines, Axes(x, "times", True, rule=1.0, from_zero=False))


def _over_time(table: Table) -> Iterable[str]:
    """Of a ramp or a trace: the first turn of each arm from second to second."""
    if table.closed:
        return
    told = [(arm, timeline(block, BINS)) for arm in table.arms if (block := first_block(table.results, arm))]
    speed = [
        Line(arm, [(at, value, value, value) for at, value, _ in points], table.arms.index(arm)) for arm, points in told
    ]
    users = [
        Line(arm, [(at, value, value, value) for at, _, value in points], table.arms.index(arm)) for arm, points in told
    ]
    yield plot("Output tokens per second, over the first turn", speed, Axes("seconds", "tokens/s"))
    yield plot("Answers under way, over the first turn", users, Axes("seconds", "answers"))


def _plan_rows(table: Table) -> list[tuple[str, list[tuple[str, float]]]]:
    rows = []
    for load in table.results.loads:
        for arm in table.arms:
            steps: dict[int, float] = {}
            for one in table.at(arm, load):
                for drafts, count in one.plans.items():
                    steps[drafts] = steps.get(drafts, 0.0) + count
            if steps:
                rows.append((f"{arm} · {load:g}", [(f"K = {k}", steps[k]) for k in sorted(steps)]))
    return rows


COLUMNS: tuple[tuple[str, Value, str], ...] = (
    ("tokens/s", lambda one: one.tokens_per_s, ".1f"),
    ("requests/s", lambda one: one.requests_per_s, ".2f"),
    ("first p50", lambda one: 1e3 * one.first.p50, ".0f"),
    ("first p95", lambda one: 1e3 * one.first.p95, ".0f"),
    ("first p99", lambda one: 1e3 * one.first.p99, ".0f"),
    ("per token p50", lambda one: 1e3 * one.per_token.p50, ".2f"),
    ("per token p95", lambda one: 1e3 * one.per_token.p95, ".2f"),
    ("per token p99", lambda one: 1e3 * one.per_token.p99, ".2f"),
    ("answer p50", lambda one: 1e3 * one.latency.p50, ".0f"),
    ("answer p95", lambda one: 1e3 * one.latency.p95, ".0f"),
    ("answer p99", lambda one: 1e3 * one.latency.p99, ".0f"),
    ("users", lambda one: one.users, ".1f"),
    ("window s", lambda one: one.window, ".1f"),
    ("tokens/round", lambda one: one.tokens_per_round, ".2f"),
)


def _figures(table: Table) -> str:
    names = ["load", "arm", *(name for name, _, _ in COLUMNS), "acceptance", "errors"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    mode = str(table.results.run.get("mode"))
    rows = []
    for load in table.results.loads:
        for arm in table.arms:
            if cell := table.at(arm, load):
                values = [_spread([value(one) for one in cell], form) for _, value, form in COLUMNS]
                cells = [load_words(mode, load), arm, *values, _accepted(cell), str(sum(one.errors for one in cell))]
                rows.append(f"<tr>{_each('td', cells)}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _kinds(table: Table) -> str:
    """Of a mixture: how long its kinds of requests waited, over all repeats of a load."""
    kinds = sorted({sample.kind for block in table.results.blocks for sample in block.samples})
    if len(kinds) < 2:
        return ""
    rows = []
    for load in table.results.loads:
        for arm, kind in ((arm, kind) for arm in table.arms for kind in kinds):
            blocks = [block for block in table.results.blocks if (block.arm, block.load) == (arm, load)]
            some = [one for block in blocks for one in block.samples if one.kind == kind and not one.error]
            first = quantiles([one.first - one.start for one in some if one.first])
            each = quantiles([per_token(one) for one in some if one.output_tokens > 1 and one.first])
            times = [_spread([1e3 * value], ".2f") for value in (first.p50, first.p95, each.p50, each.p95)]
            rows.append(f"<tr>{_each('td', [f'{load:g} at once', arm, kind, str(len(some)), *times])}</tr>")
    names = ("load", "arm", "kind", "answers", "first p50", "first p95", "per token p50", "per token p95")
    return f'<h2>By kind</h2><div class="wide"><table><tr>{_each("th", names)}</tr>{"".join(rows)}</table></div>'


def _spread(values: list[float], form: str) -> str:
    told = [value for value in values if math.isfinite(value)]
    if not told:
        return "–"
    middle, low, high = (format(one, form) for one in (statistics.median(told), min(told), max(told)))
    return middle if low == high else f"{middle} ({low}–{high})"


def _accepted(cell: list[Figures]) -> str:
    """Share of drafts accepted: by position where the server tells it, else over all."""
    if positions := cell[0].acceptance:
        return " ".join(f"{share:.2f}".removeprefix("0") for share in positions[:8])
    offered = sum(one.drafts_offered for one in cell)
    return f"{sum(one.drafts_accepted for one in cell) / offered:.2f}" if offered else "–"


def _settings(run: dict[str, Any]) -> str:
    shown = {name: value for name, value in run.items() if name not in ("type", "format")}
    return f"<p><code>{escape(json.dumps(shown, indent=1, ensure_ascii=False))}</code></p>"
