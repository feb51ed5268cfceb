"""Plots as SVG text: lines with spread over a logarithmic or linear axis, and stacked shares.

Knows numbers and names; colours are classes (c0, c1 ...) that the page's style sheet fills, light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 42
COLOURS = 8


@dataclass(frozen=True, slots=True)
class Line:
    """points: (x, y, lowest, highest); name is shown in the legend."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    colour: int


@dataclass(frozen=True, slots=True)
class Axes:
    """log: of x. rule: a y at which a dashed line is drawn, nan for none; from_zero: y begins at 0."""

    x_name: str
    y_name: str
    log: bool = False
    rule: float = math.nan
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels along one axis."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(one) for one in (self.low, self.high, value)) if self.log else self._plain(value)
        return round(self.begin + (at - low) / ((high - low) or 1) * (self.end - self.begin), 1)

    def _plain(self, value: float) -> tuple[float, float, float]:
        return self.low, self.high, value


def plot(title: str, lines: Sequence[Line], axes: Axes) -> str:
    """A figure with its legend; "" when there is no finite point."""
    lines = [Line(line.name, [p for p in line.points if all(map(math.isfinite, p))], line.colour) for line in lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    x = Scale(min(p[0] for p in points), max(p[0] for p in points), LEFT + 8, WIDTH - RIGHT - 8, axes.log)
    rules = [] if math.isnan(axes.rule) else [axes.rule]
    low = min([p[2] for p in points] + rules + [0.0] * axes.from_zero)
    high = max([p[3] for p in points] + rules)
    pad = 0.06 * (high - low or abs(high) or 1)
    y = Scale(low if axes.from_zero else low - pad, high + pad, HEIGHT - BOTTOM, TOP)
    body = [*_grid(x, y, sorted({p[0] for p in points}), axes), *(_line(line, x, y) for line in lines)]
    return _figure(title, "".join(body), [(line.name, line.colour) for line in lines])


def _grid(x: Scale, y: Scale, xs: Sequence[float], axes: Axes) -> list[str]:
    parts = []
    for tick in ticks(y.low, y.high):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{tick:g}</text>')
    last = -math.inf
    for tick in xs if axes.log else ticks(x.low, x.high):
        if (at := x(tick)) - last > 30:
            parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
            last = at
    if not math.isnan(axes.rule):
        parts.append(f'<path class="rule" d="M{LEFT} {y(axes.rule)}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(axes.x_name)}</text>')
    parts.append(f'<text class="unit" x="4" y="{TOP - 3}">{escape(axes.y_name)}</text>')
    return parts


def _line(line: Line, x: Scale, y: Scale) -> str:
    """The middle values joined, a bar from the lowest to the highest at each, values as tooltips."""
    path = "M" + "L".join(f"{x(p[0])} {y(p[1])}" for p in line.points)
    parts = [f'<path class="line" d="{path}"/>'] if len(line.points) > 1 else []
    marked = len(line.points) <= 24
    for at, middle, lowest, highest in line.points if marked else ():
        if highest > lowest:
            parts.append(f'<path class="spread" d="M{x(at)} {y(lowest)}V{y(highest)}"/>')
        told = escape(f"{line.name} at {at:g}: {middle:.4g} ({lowest:.4g} to {highest:.4g})")
        parts.append(f'<circle cx="{x(at)}" cy="{y(middle)}" r="3.5"><title>{told}</title></circle>')
    return f'<g class="c{line.colour % COLOURS}">{"".join(parts)}</g>'


def shares(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """Horizontal bars of length 1, each divided into named parts; "" when there are none."""
    names = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
    if not names:
        return ""
    left, step, bars = 120, 22, []
    for index, (label, parts) in enumerate(rows):
        at, top = float(left), 6 + index * step
        bars.append(f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>')
        total = sum(value for _, value in parts) or 1.0
        for name, value in parts:
            width = (WIDTH - left - RIGHT) * value / total
            told = escape(f"{label}: {name} {value / total:.1%}")
            place = f'x="{at:.1f}" y="{top}" width="{max(0.0, width - 1):.1f}" height="{step - 5}"'
            bars.append(f'<rect class="c{names.index(name) % COLOURS}" {place}><title>{told}</title></rect>')
            at += width
    legend = [(name, index) for index, name in enumerate(names)]
    return _figure(title, "".join(bars), legend, 12 + step * len(rows))


def _figure(title: str, body: str, legend: Sequence[tuple[str, int]], height: int = HEIGHT) -> str:
    keys = "".join(f'<li><i class="c{colour % COLOURS}"></i>{escape(name)}</li>' for name, colour in legend)
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
    return f'<figure><figcaption>{escape(title)}</figcaption>{svg}<ul class="keys">{keys}</ul></figure>'


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round values within the range."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(power * times for times in (1, 2, 5, 10) if span / (power * times) <= 6)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]
