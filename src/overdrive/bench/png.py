"""The plot of throughput as a PNG, where matplotlib happens to be installed; the HTML page never needs it."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

from overdrive.bench.ratios import Table


def write_png(table: Table, path: Path) -> bool:
    """Output tokens/s over load, an error bar from the lowest to the highest repeat. False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None or not table.cells:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for arm in table.arms:
        cells = [(load, [one.tokens_per_s for one in table.at(arm, load)]) for load in table.results.loads]
        told = [(load, statistics.median(values), min(values), max(values)) for load, values in cells if values]
        loads, middle, low, high = zip(*told, strict=True)
        spread = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        axes.errorbar(loads, middle, yerr=spread, marker="o", markersize=4, capsize=3, label=arm)
    axes.set(xlabel="load", ylabel="output tokens/s", ylim=(0, None))
    if len(table.results.loads) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(table.results.loads, [f"{load:g}" for load in table.results.loads])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=144)
    return True
