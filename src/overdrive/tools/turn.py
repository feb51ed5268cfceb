"""One turn of a chat with everything that tools, structure and reasoning make of it: prompt, grammar and reader.

The HTTP endpoint and the LLM class both prepare their turns here, so the same words give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overdrive.errors import BadRequest
from overdrive.structured import Structure
from overdrive.text import ChatTemplate, Tokenizer
from overdrive.tooled import ToolUse, check_together
from overdrive.tools.calls import CallPiece, CallReader, Found
from overdrive.tools.grammar import Start, tool_grammar
from overdrive.tools.prompt import written_out
from overdrive.tools.reasoning import ReasoningReader
from overdrive.tools.style import ChatStyle
from overdrive.types import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a client wants of a turn. names: further names for the chat template. open_turn: end the prompt where the
    assistant is to speak."""

    messages: Sequence[Mapping[str, Any]]
    structure: Structure | None = None
    use: ToolUse | None = None
    names: Mapping[str, Any] | None = None
    open_turn: bool = True

    @property
    def field(self) -> str:
        """The request's field that asks for the grammar, "" for free text."""
        if self.use is not None:
            return "tools"
        return self.structure.field if self.structure else ""

    @property
    def function_names(self) -> list[str]:
        """Functions that may be called."""
        return [one.name for one in self.use.callable] if self.use else []


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn ready to be generated. reasons: the answer begins within the reasoning."""

    prompt: list[int]
    grammar: GrammarSpec | None
    reasons: bool


def prepare(asked: Asked, style: ChatStyle, template: ChatTemplate, tokenizer: Tokenizer) -> Turn:
    """Prompt and grammar of a turn.

    Raises BadRequest for messages that the template refuses, and for a structure that cannot go with the tools.
    """
    check_together(asked.structure, asked.use)
    text = _render(asked, style, template)
    grammar = grammar_of(asked, style)
    thinking = style.thinking
    if thinking is None or not asked.open_turn:
        return Turn(tokenizer.encode(text, add_special=False), grammar, reasons=False)
    end = text.rstrip()
    reasons = end.endswith(thinking.open)
    if grammar is not None and not reasons and not end.endswith(thinking.close):
        # A model that reasons of its own accord is made to begin, so that it is known where the grammar does.
        text += thinking.open + "\n"
        reasons = True
    if grammar is not None and reasons:
        grammar = replace(grammar, after=style.close_ids)
    return Turn(tokenizer.encode(text, add_special=False), grammar, reasons)


def _render(asked: Asked, style: ChatStyle, template: ChatTemplate) -> str:
    tools = asked.use.shown if asked.use else ()
    messages = written_out(asked.messages, tools, style)
    return template.render(messages, tools, asked.open_turn, asked.names)


def grammar_of(asked: Asked, style: ChatStyle) -> GrammarSpec | None:
    """The grammar of an answer, without regard to reasoning. Raises BadRequest where none can be."""
    use, structure = asked.use, asked.structure
    if use is None:
        return structure.grammar if structure else None
    if structure is not None and not style.form.trigger:
        message = f"{structure.field}: this model writes its tool calls as JSON too; send either a structure or tools"
        raise BadRequest(message, structure.field)
    document = structure.schema if structure else None
    starts: Start = "calls" if use.required else "text"
    trigger: tuple[int, ...] = ()
    if style.trigger_id is not None and starts == "text" and document is None:
        starts, trigger = "triggered", (style.trigger_id,)
    source = tool_grammar(style.form, use.callable, style.specials, starts, use.parallel, document)
    return GrammarSpec("lark", source, trigger=trigger)


@dataclass(frozen=True, slots=True)
class Part:
    """What is new of a turn: reasoning, text for the user, and pieces of calls."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallPiece] = field(default_factory=list)


class TurnReader:
    """Takes one answer's text apart while it arrives. Parts put together are the same however the text is cut.

    names: functions that may be called; without any the text holds no calls.
    """

    def __init__(
        self,
        style: ChatStyle,
        reasons: bool,
        names: Sequence[str] = (),
        new_id: Callable[[int, str], str] | None = None,
    ) -> None:
        self._reasoning = ReasoningReader(style.thinking, reasons) if style.thinking else None
        self._calls = CallReader(style.form, names, new_id) if names else None

    @property
    def calls_whole(self) -> bool:
        """Whether calls were made, each complete."""
        return self._calls is not None and self._calls.whole

    def take(self, text: str, last: bool = False) -> Part:
        """What `text` makes certain; with `last`, all the rest."""
        reasoning, content = self._reasoning.push(text) if self._reasoning else ("", text)
        if last and self._reasoning:
            more = self._reasoning.finish()
            reasoning, content = reasoning + more[0], content + more[1]
        if self._calls is None:
            return Part(reasoning, content)
        found = self._calls.push(content)
        rest = self._calls.finish() if last else Found()
        return Part(reasoning, found.text + rest.text, found.calls + rest.calls)
