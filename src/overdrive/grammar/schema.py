"""What of JSON Schema cannot be promised: found before anything is compiled, named by keyword and place."""

from __future__ import annotations

from typing import Any

from overdrive.errors import BadRequest


def check_schema(schema: Any) -> None:
    """Raises BadRequest for a schema with a keyword that the grammar would not enforce, naming it and its place."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(f"a JSON schema is an object or a boolean, not {type(schema).__name__}")
