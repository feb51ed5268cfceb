"""Lines over a common axis as an SVG, panels side by side.

Knows numbers and SVG, nothing of what they mean; needs nothing but Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300, 280  # of a panel's plot, in pixels
LEFT, RIGHT, TOP, BOTTOM = 44, 58, 34, 44  # around it
SHADES = ("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#85bcdb", "#9ecae1")
GRID, INK = "#dddddd", "#333333"
MOST_TICKS = 6
LABEL_HEIGHT = 10


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same places `xs`, all at least 0. axis: what `xs` are.

    lines: values by what stands at a line's end, at most as many as there are shades.
    """

    title: str
    axis: str
    xs: Sequence[float]
    lines: Mapping[str, Sequence[float]]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers around [low, high], at most MOST_TICKS + 1, the first and last at or beyond its ends."""
    unit = 10 ** math.floor(math.log10((high - low) / MOST_TICKS))
    for step in (unit * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= MOST_TICKS:
            break
    return [round(step * number, 10) for number in range(first, last + 1)]


def drawing(title: str, panels: Sequence[Panel]) -> str:
    """The SVG."""
    step = LEFT + WIDTH + RIGHT
    parts = [
        f'<g transform="translate({number * step + LEFT} {TOP})">{_plot(panel)}</g>'
        for number, panel in enumerate(panels)
    ]
    width, height = step * len(panels), TOP + HEIGHT + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}" role="img">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _plot(panel: Panel) -> str:
    """One panel, its origin at the upper left of the plot."""
    xs = ticks(0.0, max(panel.xs))
    ys = ticks(min(map(min, panel.lines.values())), max(map(max, panel.lines.values())))

    def x(value: float) -> float:
        return round(WIDTH * (value - xs[0]) / (xs[-1] - xs[0]), 1)

    def y(value: float) -> float:
        return round(HEIGHT * (ys[-1] - value) / (ys[-1] - ys[0]), 1)

    parts = [f'<text y="-16" font-size="13">{panel.title}</text>']
    for tick in ys:
        parts.append(f'<path d="M0 {y(tick)}H{WIDTH}" stroke="{GRID}"/>')
        parts.append(text(-6, y(tick) + 4, f"{tick:g}", "end"))
    for tick in xs:
        parts.append(text(x(tick), HEIGHT + 16, f"{tick:g}", "middle"))
    parts.append(text(WIDTH / 2, HEIGHT + 34, panel.axis, "middle"))
    labels = _apart([y(values[-1]) for values in panel.lines.values()])
    for (name, values), shade, label in zip(panel.lines.items(), _shades(len(panel.lines)), labels, strict=True):
        points = [(x(at), y(value)) for at, value in zip(panel.xs, values, strict=True)]
        path = " ".join(f"{across},{down}" for across, down in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{shade}" stroke-width="1.6"/>')
        parts += [f'<circle cx="{across}" cy="{down}" r="2.2" fill="{shade}"/>' for across, down in points]
        parts.append(text(points[-1][0] + 8, label + 4, name, "start"))
    return "\n".join(parts)


def _shades(count: int) -> Sequence[str]:
    """From dark to light; two lines get shades that differ."""
    return (SHADES[0], SHADES[4]) if count == 2 else SHADES[:count]


def _apart(places: Sequence[float]) -> list[float]:
    """The places of labels, moved down where they would write over one another."""
    moved, least = [0.0] * len(places), -math.inf
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        moved[index] = round(max(places[index], least), 1)
        least = moved[index] + LABEL_HEIGHT
    return moved


def text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'
