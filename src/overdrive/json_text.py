"""JSON that strangers wrote, as text and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from overdrive.errors import OverdriveError


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for whatever is not one, nesting too deep for the parser included.

    The standard parser recurses, and answers deep nesting with a RecursionError, which no caller expects of a parser.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises OverdriveError naming the file when it is missing or not one."""
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OverdriveError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise OverdriveError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise OverdriveError(f"{path} holds no JSON object")
    return raw
