"""Prompts under permissive licences, from the project's prompt collections into one prompts file.

    python scripts/permissive_prompts.py FOLDER OUT.jsonl

FOLDER holds `prompts_train/*.jsonl.gz` (rows with id, source, license, category, prompt) and `gsm8k/train.jsonl.gz`
(question and answer; MIT, Copyright OpenAI). Kept are rows under MIT, Apache-2.0, CC0-1.0 and CC-BY-4.0; of gsm8k all
of the training split stands for the part of it in prompts_train.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PERMISSIVE = frozenset({"MIT", "Apache-2.0", "CC0-1.0", "CC-BY-4.0"})
FIELDS = ("id", "source", "license", "category", "prompt")


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Parsed lines of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def permissive(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows to keep, each with FIELDS, no prompt twice."""
    seen: set[str] = set()
    for row in (*_gsm8k(folder), *_collected(folder)):
        words = " ".join(row["prompt"].lower().split())
        if words not in seen:
            seen.add(words)
            yield row


def _gsm8k(folder: Path) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows_of(folder / "gsm8k" / "train.jsonl.gz")):
        labels = {"id": f"gsm8k-{number}", "source": "gsm8k_train", "license": "MIT", "category": "math"}
        yield labels | {"prompt": row["question"]}


def _collected(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "prompts_train").glob("*.jsonl.gz")):
        for row in rows_of(path):
            if row["license"] in PERMISSIVE and row["source"] != "gsm8k_train":
                yield {field: row[field] for field in FIELDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    with options.out.open("w", encoding="utf-8") as out:
        for row in permissive(options.folder):
            counts[row["source"], row["license"]] += 1
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    for (source, name), count in sorted(counts.items()):
        print(f"{count:6} {source} ({name})")
    print(f"{counts.total():6} in all, {options.out}")


if __name__ == "__main__":
    main()
