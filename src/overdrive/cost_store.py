"""Measured costs on disk, so that a second start on the same machine need not measure again.

A table is read for exactly the key it was stored under: model, machine, versions and whatever else costs depend on. Any
other, and a file that cannot be understood, is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from overdrive.errors import OverdriveError
from overdrive.json_text import parse_json
from overdrive.policy.cost import CostTable

Key = Mapping[str, str | int]


class CostStore:
    """Tables in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: Key) -> Path:
        """Where the table of this key is kept."""
        digest = hashlib.blake2b(json.dumps(dict(key), sort_keys=True).encode(), digest_size=12).hexdigest()
        return self._folder / f"{digest}.json"

    def load(self, key: Key) -> CostTable | None:
        """The table of this key; None where there is none, or none that can be trusted."""
        try:
            stored = parse_json(self.path(key).read_text(encoding="utf-8"))
            return CostTable.from_dict(stored, dict(key)) if isinstance(stored, dict) else None
        except (OSError, OverdriveError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, key: Key, table: CostTable) -> None:
        """Keep the table. Nothing happens where the folder cannot be written: the next start measures again."""
        target = self.path(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Beside the target, so that the last move is within one file system and thereby atomic.
            with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".part", delete=False) as part:
                json.dump(table.to_dict(dict(key)), part)
            os.replace(part.name, target)
        except OSError:
            return
