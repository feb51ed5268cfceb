"""Auto beside every fixed K, a line for each cell that benchmarks/gpu_auto.py measured, as an SVG.

    python scripts/draw_cells.py gpu_auto.json gpu_auto.svg

A mark is an arm's speed as a share of the fastest fixed one's, medians of a cell's blocks. Knows the benchmark's file;
needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from line_drawing import GRID, INK, SHADES, text

LEFT, WIDTH, RIGHT, TOP, BOTTOM = 190, 560, 24, 64, 24  # pixels
LINE = 22  # of a cell
LOW, HIGH = 0.25, 1.1  # shares
ASKED = 0.96


def across(share: float) -> float:
    return round(WIDTH * (min(max(share, LOW), HIGH) - LOW) / (HIGH - LOW), 1)


def cell_line(cell: Mapping[str, Any]) -> str:
    """Marks of one cell, its line at height 0: K as numbers, auto as a dot with its quartiles."""
    speeds = {arm: median(rates) for arm, rates in cell["rates"].items()}
    best = max(speed for arm, speed in speeds.items() if arm != "auto")
    low, _, high = (across(each / best) for each in quantiles(cell["rates"]["auto"], n=4))
    name = f"p {cell['accept']:g}, {cell['context']:,} positions, {cell['rows']} row" + "s" * (cell["rows"] > 1)
    parts = [text(-12, 4, name, "end"), f'<path d="M0 0H{WIDTH}" stroke="{GRID}"/>']
    parts += [text(across(speed / best), 4, arm, "middle") for arm, speed in speeds.items() if arm != "auto"]
    parts.append(f'<path d="M{low} -7H{high}" stroke="{SHADES[2]}" stroke-width="2"/>')
    parts.append(f'<circle cx="{across(speeds["auto"] / best)}" cy="-7" r="4" fill="{SHADES[1]}"/>')
    return "\n".join(parts)


def drawing(cells: list[Mapping[str, Any]]) -> str:
    """The SVG."""
    height, width = TOP + LINE * len(cells) + BOTTOM, LEFT + WIDTH + RIGHT
    bottom = LINE * len(cells)
    shares = [round(LOW + 0.05 * step, 2) for step in range(math.ceil((HIGH - LOW) / 0.05))]
    parts = [
        f'<path d="M{across(1.0)} -16V{bottom - 8}" stroke="{INK}" stroke-width="0.6"/>',
        f'<path d="M{across(ASKED)} -16V{bottom - 8}" stroke="{INK}" stroke-width="0.6" stroke-dasharray="3 3"/>',
        *(text(across(share), bottom + 8, f"{share:g}", "middle") for share in shares if round(share * 20) % 2 == 0),
    ]
    for number, cell in enumerate(cells):
        parts.append(f'<g transform="translate(0 {LINE * number + 4})">{cell_line(cell)}</g>')
    title = "Speed as a share of the fastest fixed K's: numbers are K, the dot is auto with its quartiles"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}" role="img">\n<title>{title}</title>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="22" font-size="13">{title}</text>\n'
        f'<g transform="translate({LEFT} {TOP})">' + "\n".join(parts) + "</g>\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    cells = json.loads(options.results.read_text(encoding="utf-8"))["cells"]
    options.out.write_text(drawing(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
