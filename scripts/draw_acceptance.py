"""Held-out acceptance against the answer tokens trained on, as an SVG, from the history of a training run.

    python scripts/draw_acceptance.py OUT/history.jsonl acceptance.svg

Knows history.jsonl's measurements and SVG; needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 300, 280  # of a panel's plot, in pixels
LEFT, RIGHT, TOP, BOTTOM = 44, 58, 34, 44  # around it
SHADES = ("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#85bcdb", "#9ecae1")
GRID, INK = "#dddddd", "#333333"
MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same tokens. lines: values by what stands at a line's end."""

    title: str
    lines: Mapping[str, Sequence[float]]


def measurements(path: Path) -> list[dict[str, Any]]:
    """Lines of a history that hold a measurement: with answer_tokens, acceptance and tokens_per_round."""
    with path.open(encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if "acceptance" in row]


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Acceptance by position, and tokens per round by the length of the chain."""
    positions = range(len(rows[0]["acceptance"]))
    return [
        Panel("acceptance, by position", {f"{i + 1}": [row["acceptance"][i] for row in rows] for i in positions}),
        Panel(
            "tokens per round, by drafts",
            {f"K = {k}": [row["tokens_per_round"][k] for row in rows] for k in rows[0]["tokens_per_round"]},
        ),
    ]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers around [low, high], at most MOST_TICKS + 1, the first and last at or beyond its ends."""
    unit = 10 ** math.floor(math.log10((high - low) / MOST_TICKS))
    for step in (unit * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= MOST_TICKS:
            break
    return [round(step * number, 10) for number in range(first, last + 1)]


def drawing(rows: Sequence[Mapping[str, Any]]) -> str:
    """The SVG: panels side by side."""
    millions = [row["answer_tokens"] / 1e6 for row in rows]
    parts, step = [], LEFT + WIDTH + RIGHT
    both = panels(rows)
    for number, panel in enumerate(both):
        parts.append(f'<g transform="translate({number * step + LEFT} {TOP})">{_plot(panel, millions)}</g>')
    width, height = step * len(both), TOP + HEIGHT + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}" role="img">\n'
        "<title>Held-out acceptance against answer tokens trained on</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _plot(panel: Panel, millions: Sequence[float]) -> str:
    """One panel, its origin at the upper left of the plot."""
    xs = ticks(0.0, max(millions))
    ys = ticks(min(map(min, panel.lines.values())), max(map(max, panel.lines.values())))

    def x(value: float) -> float:
        return round(WIDTH * (value - xs[0]) / (xs[-1] - xs[0]), 1)

    def y(value: float) -> float:
        return round(HEIGHT * (ys[-1] - value) / (ys[-1] - ys[0]), 1)

    parts = [f'<text y="-16" font-size="13">{panel.title}</text>']
    for tick in ys:
        parts.append(f'<path d="M0 {y(tick)}H{WIDTH}" stroke="{GRID}"/>')
        parts.append(_text(-6, y(tick) + 4, f"{tick:g}", "end"))
    for tick in xs:
        parts.append(_text(x(tick), HEIGHT + 16, f"{tick:g}", "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT + 34, "answer tokens trained on, repeats counted, millions", "middle"))
    for (name, values), shade in zip(panel.lines.items(), SHADES, strict=False):
        points = [(x(at), y(value)) for at, value in zip(millions, values, strict=True)]
        path = " ".join(f"{across},{down}" for across, down in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{shade}" stroke-width="1.6"/>')
        parts += [f'<circle cx="{across}" cy="{down}" r="2.2" fill="{shade}"/>' for across, down in points]
        parts.append(_text(points[-1][0] + 8, points[-1][1] + 4, name, "start"))
    return "\n".join(parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    rows = measurements(options.history)
    if not rows:
        parser.error(f"{options.history} holds no measurement yet")
    options.out.write_text(drawing(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
