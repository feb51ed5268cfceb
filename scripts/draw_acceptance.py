"""Held-out acceptance against the answer tokens trained on, as an SVG, from the history of a training run.

    python scripts/draw_acceptance.py OUT/history.jsonl acceptance.svg

Knows history.jsonl's measurements; needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from line_drawing import Panel, drawing

AXIS = "answer tokens trained on, repeats counted, millions"


def measurements(path: Path) -> list[dict[str, Any]]:
    """Lines of a history that hold a measurement: with answer_tokens, acceptance and tokens_per_round."""
    with path.open(encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if "acceptance" in row]


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Acceptance by position, and tokens per round by the length of the chain."""
    millions = [row["answer_tokens"] / 1e6 for row in rows]
    positions = range(len(rows[0]["acceptance"]))
    chains = rows[0]["tokens_per_round"]
    return [
        Panel(
            "acceptance, by position",
            AXIS,
            millions,
            {f"{i + 1}": [row["acceptance"][i] for row in rows] for i in positions},
        ),
        Panel(
            "tokens per round, by drafts",
            AXIS,
            millions,
            {f"K = {k}": [row["tokens_per_round"][k] for row in rows] for k in chains},
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    rows = measurements(options.history)
    if not rows:
        parser.error(f"{options.history} holds no measurement yet")
    title = "Held-out acceptance against answer tokens trained on"
    options.out.write_text(drawing(title, panels(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
