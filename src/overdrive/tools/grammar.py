"""From tools and a format to one grammar, in llguidance's Lark: what the engine holds the answer to.

Markers that the vocabulary keeps as special tokens are written by id, others as text: a token is then whatever the
vocabulary makes of them. Arguments are held to the tools' schemas, in the spacing of Python's json.dumps, which is what
templates show the models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from overdrive.grammar.schema import GUIDANCE, plain
from overdrive.tools.formats import ToolFormat

Start = Literal["calls", "text", "triggered"]
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Function(Protocol):
    """A function that may be called: its name and the schema of its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> dict[str, Any]: ...


def tool_grammar(
    form: ToolFormat,
    tools: Sequence[Function],
    specials: Mapping[str, int],
    starts: Start,
    parallel: bool = True,
    document: dict[str, Any] | None = None,
) -> str:
    """A Lark grammar of answers that call `tools` as `form` writes it.

    specials: ids of the format's markers that are special tokens.
    starts: with "calls"; with free "text", which turns into calls behind the format's trigger; or, "triggered", right
    behind the trigger, for an engine that watches free text by itself, which costs no masks.
    document: in place of free text, a JSON schema: the answer is such a document or calls. Needs a trigger.
    parallel: whether more than one call may be made, where such models make more.
    """
    text = _Texts(form, specials)
    parallel = parallel and not form.single
    more = " more*" if parallel else ""
    rules = [*_starts(form, text, starts, document, f"first{more} {text(form.finish)}")]
    rules.append(f"first: {text(form.opening)} call")
    if parallel:
        rules.append(f"more: {text(form.between + form.call)} call")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    number = f"{text(form.number)} /[0-9]+/ " if form.number else ""
    for index, tool in enumerate(tools):
        head = f"{text(tool.name)} {number}{text(form.middle)}" if number else text(tool.name + form.middle)
        schema = json.dumps({**plain(tool.arguments), GUIDANCE: _SPACING}, ensure_ascii=False)
        rules.append(f"call_{index}: {head} %json {schema} {text(form.end)}")
    return "\n".join(rules)


def _starts(
    form: ToolFormat, text: _Texts, starts: Start, document: dict[str, Any] | None, calls: str
) -> Sequence[str]:
    """How an answer begins: the rule `start` and those that only it needs."""
    trigger = text(form.trigger)
    if starts == "triggered":
        return [f"start: {calls}"]
    if starts == "calls":
        return [f"start: {trigger} {calls}"]
    if document is not None:
        found = plain(document)
        schema = json.dumps({**found, GUIDANCE: _SPACING | found.get(GUIDANCE, {})}, ensure_ascii=False)
        return [f"start: document | {trigger} {calls}", f"document: %json {schema}"]
    if not form.trigger:
        opening = re.escape(form.opening.rstrip(' "')).replace("/", "\\/")
        loose = f"/\\s*/ /{opening}(?s:.*)/"
        return [f"start: TEXT | {calls}", "TEXT: /(?s:.*)/ & ~CALL", f"CALL: {loose}"]
    if form.trigger in text.specials:
        return [f"start: TEXT | TEXT {trigger} {calls}", "TEXT: /(?s:.*)/"]
    # Lazy: of text and trigger the shortest run counts, so that free text cannot swallow a trigger.
    return [f"start: TEXT | head {calls}", f"head[lazy]: TEXT {trigger}", "TEXT: /(?s:.*)/"]


class _Texts:
    """Exact text as a sequence of Lark terminals."""

    def __init__(self, form: ToolFormat, specials: Mapping[str, int]) -> None:
        self.specials = {marker: token for marker, token in specials.items() if marker in form.markers}
        names = sorted(self.specials, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def __call__(self, text: str) -> str:
        parts = self._cut.split(text) if self._cut else [text]
        return " ".join(self._terminal(part) for part in parts if part)

    def _terminal(self, part: str) -> str:
        token = self.specials.get(part)
        return json.dumps(part, ensure_ascii=False) if token is None else f"<[{token}]>"
