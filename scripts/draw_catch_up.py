"""First drafts that were right by rounds since a pause in drafting, as an SVG, from what benchmarks/catch_up.py wrote.

    python scripts/draw_catch_up.py recovery.jsonl catch_up.svg

Knows the benchmark's lines; needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from line_drawing import Panel, drawing


def panel(case: Mapping[str, Any]) -> Panel:
    """One window and pause: the run that paused, and the one that never stopped, at the same places of the texts."""
    return Panel(
        f"window {case['window']}, {case['pause']} steps without drafts",
        "rounds since drafting went on",
        case["rounds"],
        {"never": case["never"], "paused": case["paused"]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recovery", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    cases = [json.loads(line) for line in options.recovery.read_text(encoding="utf-8").splitlines()]
    title = "First draft right, by rounds since a pause beyond the window"
    options.out.write_text(drawing(title, [panel(case) for case in cases]), encoding="utf-8")


if __name__ == "__main__":
    main()
