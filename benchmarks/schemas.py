"""How well JSON schemas are kept: the official test suite and JSONSchemaBench, group by group.

Run: PYTHONPATH=src python benchmarks/schemas.py --suite FOLDER --bench FOLDER [--only NAME]
     [--list invalid|valid|refused]

--suite is JSON-Schema-Test-Suite's folder with `tests/`, --bench that of JSONSchemaBench's files, JSON lines. For each
group: schemas that are refused with a reason; of the others, valid instances that are accepted and invalid ones that
are refused. An instance is written as answers are, in the order of its keys. `format` is an assertion.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from overdrive.errors import BadRequest
from overdrive.grammar.trial import accepts, as_written, byte_compiler


@dataclass
class Group:
    """Counts, and the cases that went wrong: (schema's name, instance's description)."""

    schemas: int = 0
    refused: int = 0
    valid: int = 0
    valid_accepted: int = 0
    invalid: int = 0
    invalid_refused: int = 0
    whole: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrongly_accepted: list[tuple[str, str, str]] = field(default_factory=list)
    wrongly_refused: list[tuple[str, str, str]] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, name: str, schema: Any, tests: list[dict[str, Any]]) -> None:
        self.schemas += 1
        started = time.perf_counter()
        try:
            program = COMPILE("json_schema", json.dumps(schema))
        except BadRequest as error:
            self.refused += 1
            self.reasons[str(error)] += 1
            return
        finally:
            self.slowest = max(self.slowest, time.perf_counter() - started)
        right = True
        for test in tests:
            found = accepts(program, as_written(test["data"]))
            case = (name, test.get("description", ""), as_written(test["data"])[:200])
            if test["valid"]:
                self.valid += 1
                self.valid_accepted += found
                if not found:
                    self.wrongly_refused.append(case)
            else:
                self.invalid += 1
                self.invalid_refused += not found
                if found:
                    self.wrongly_accepted.append(case)
            right &= found == test["valid"]
        self.whole += right


COMPILE = byte_compiler()


def suite(folder: Path) -> Iterator[tuple[str, str, Any, list[dict]]]:
    """(group, name, schema, tests)"""
    for file in sorted((folder / "tests").rglob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            name = str(file.relative_to(folder / "tests").with_suffix(""))
            yield name, f"{name}: {group['description']}", group["schema"], group["tests"]


def bench(folder: Path) -> Iterator[tuple[str, str, Any, list[dict]]]:
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                raw = json.loads(line)
                yield file.name.removesuffix(".jsonl.gz"), raw["id"], raw["schema"], raw["tests"]


def score(cases: Iterator[tuple[str, str, Any, list[dict]]], only: str) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for group, name, schema, tests in cases:
        if only in group:
            groups.setdefault(group, Group()).add(name, schema, tests)
    return groups


def show(groups: dict[str, Group], listed: str, console: Console) -> None:
    table = Table("group", "schemas", "refused", "valid accepted", "invalid refused", "all right", "slowest ms")
    total = Group()
    for name, g in [*groups.items(), ("all", total)]:
        if g is not total:
            for key in ("schemas", "refused", "valid", "valid_accepted", "invalid", "invalid_refused", "whole"):
                setattr(total, key, getattr(total, key) + getattr(g, key))
            total.slowest = max(total.slowest, g.slowest)
        table.add_row(
            name,
            str(g.schemas),
            str(g.refused),
            f"{g.valid_accepted}/{g.valid}",
            f"{g.invalid_refused}/{g.invalid}",
            str(g.whole),
            f"{1e3 * g.slowest:.0f}",
        )
    console.print(table)
    for g in groups.values():
        cases = {"invalid": g.wrongly_accepted, "valid": g.wrongly_refused, "": []}
        for case in cases.get(listed, []):
            print(*case, sep=" | ")
        if listed == "refused":
            for reason, count in g.reasons.most_common():
                print(count, reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", choices=["", "invalid", "valid", "refused"], default="")
    args = parser.parse_args()
    console = Console(width=140)
    for folder, cases in ((args.suite, suite), (args.bench, bench)):
        if folder:
            show(score(cases(folder), args.only), args.list, console)


if __name__ == "__main__":
    main()
