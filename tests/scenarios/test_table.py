"""The table of scenarios names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "scenarios.md").read_text(encoding="utf-8")


def test_every_test_of_the_table_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if not _defines(TESTS / file, name)]
    assert not missing


def _defines(file: Path, name: str) -> bool:
    return bool(re.search(rf"^(?:async )?(?:def|class) {name}\b", file.read_text(encoding="utf-8"), re.M))
