"""Files and words at the end of a run: the page, the picture, the verdict on the screen."""

from __future__ import annotations

from pathlib import Path

from overdrive.bench.page import page
from overdrive.bench.png import write_png
from overdrive.bench.ratios import Table, table
from overdrive.bench.records import read_results
from overdrive.bench.verdict import verdict, warnings
from overdrive.errors import OverdriveError


def write_report(results: Path, out: Path | None = None) -> Table:
    """Writes the page (by default beside the results) and, where it can be drawn, the PNG; prints the verdict."""
    told = table(read_results(results))
    target = out or results.with_suffix(".html")
    try:
        target.write_text(page(told), encoding="utf-8")
        picture = target.with_suffix(".png")
        written = [target, *([picture] if write_png(told, picture) else [])]
    except OSError as error:
        raise OverdriveError(f"cannot write {target}: {error.strerror or error}") from None
    for line in verdict(told):
        print(line)
    for line in warnings(told):
        print(f"note: {line}")
    print(f"report: {', '.join(str(path) for path in written)}")
    return told
