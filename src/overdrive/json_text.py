"""JSON that strangers wrote."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for whatever is not one, nesting too deep for the parser included.

    The standard parser recurses, and answers deep nesting with a RecursionError, which no caller expects of a parser.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
