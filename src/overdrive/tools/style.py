"""How one model's chats are written: found once, when its chat template and tokenizer are there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from overdrive.config import ToolFormatName
from overdrive.text import ChatTemplate, Tokenizer
from overdrive.text.pieces import TokenTable
from overdrive.tools.formats import FORMATS, Thinking, ToolFormat, format_of, thinking_of


@dataclass(frozen=True, slots=True)
class Shows:
    """What a chat template puts into the prompt by itself: tools, calls of earlier turns, and their results."""

    tools: bool
    calls: bool
    results: bool

    @classmethod
    def found_in(cls, template: str) -> Shows:
        """By the names that a template must use for each."""
        return cls(
            tools=bool(re.search(r"\btools\b", template)),
            calls="tool_calls" in template,
            results=bool(re.search(r"""["']tool["']""", template)),
        )


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """Conventions of a model.

    shows: what its template tells the model of; the rest is written into messages.
    trigger_id: the token that begins calls; None where they begin with text.
    specials: ids of markers that are special tokens. table: tokens as text in which these markers can be seen.
    open_ids, close_ids: what stands around the reasoning, as tokens; empty for models that do not reason.
    """

    form: ToolFormat
    shows: Shows
    thinking: Thinking | None
    trigger_id: int | None
    specials: Mapping[str, int]
    table: TokenTable
    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]


def chat_style(template: ChatTemplate, tokenizer: Tokenizer, tool_format: ToolFormatName = "auto") -> ChatStyle:
    """The conventions that `template` shows. tool_format: the tools' form by name, "auto" finds it too."""
    form = format_of(template.source) if tool_format == "auto" else FORMATS[tool_format]
    thinking = thinking_of(template.source)
    marks = [*form.markers, *((thinking.open, thinking.close) if thinking else ())]
    found = {mark: token for mark in marks if (token := tokenizer.id_of(mark)) is not None}
    specials = {mark: token for mark, token in found.items() if token in tokenizer.table.special}
    return ChatStyle(
        form=form,
        shows=Shows.found_in(template.source),
        thinking=thinking,
        trigger_id=found.get(form.trigger),
        specials=specials,
        table=tokenizer.table.showing(specials.values()),
        open_ids=tuple(tokenizer.encode(thinking.open, add_special=False)) if thinking else (),
        close_ids=tuple(tokenizer.encode(thinking.close, add_special=False)) if thinking else (),
    )
