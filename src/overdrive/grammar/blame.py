"""Which part of a JSON schema a complaint is about: the smallest schema that gives rise to it alone, and its keyword.

The library complains without saying where. Knows schemas as values, and a function that complains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from overdrive.grammar.schema import Schema, parts, places

MOST_TRIES = 400
"""Of parts; a place that is not found by then is told roughly."""

DEFINED = ("$defs", "definitions")

Complain = Callable[[Schema], str]
"""What is wrong with a schema, "" where nothing is."""


def blame(schema: Schema, complain: Complain) -> tuple[str, str]:
    """JSON pointer of the schema at fault, and its keyword; "" for a keyword where no single one is.

    complain: has something to say of `schema`.
    """
    search = _Search(schema, complain)
    return search.pointer, search.keyword


class _Search:
    def __init__(self, schema: Schema, complain: Complain) -> None:
        self._complain = complain
        self._said = complain(schema)
        self._left = MOST_TRIES
        self._definitions = {key: schema[key] for key in DEFINED if isinstance(schema, dict) and key in schema}
        self._targets = dict(places(schema))
        self.pointer, found = "#", schema
        seen = {"#"}
        while inner := next((one for one in self._inner(found) if one[0] not in seen and self._same(one[1])), None):
            self.pointer, found = inner
            seen.add(self.pointer)
        self.keyword = self._culprit(found)

    def _inner(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """Schemas that are part of one, or that it refers to."""
        if isinstance(schema, dict):
            target = schema.get("$ref")
            if isinstance(target, str) and target in self._targets:
                yield target, self._targets[target]
            yield from ((at, part) for key, at, part in parts(schema, self.pointer) if key not in DEFINED)

    def _same(self, part: Schema) -> bool:
        """Whether a part alone, with the definitions that it may refer to, gives rise to the complaint."""
        self._left -= 1
        alone = {**self._definitions, **part} if isinstance(part, dict) else part
        return self._left > 0 and self._complain(alone) == self._said

    def _culprit(self, schema: Schema) -> str:
        """The first keyword without which there is no such complaint; `type`, which makes others count, last."""
        keys: list[Any] = [key for key in schema if key not in DEFINED] if isinstance(schema, dict) else []
        keys.sort(key=lambda key: key == "type")
        without = ({other: schema[other] for other in schema if other != key} for key in keys)
        return next((key for key, less in zip(keys, without, strict=True) if not self._same(less)), "")
