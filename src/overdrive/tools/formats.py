"""How families of models write tool calls and reasoning: data, read by the grammar, the reader and the prompt alike.

    text .. begin | call NAME middle {ARGUMENTS} end | between | call NAME middle {ARGUMENTS} end | finish

A new family is a new entry here and nothing else. The forms are those that the models' own chat templates write for
earlier turns, since that is what the models were trained on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls. All parts are exact text; arguments are a JSON object.

    number: stands between name and middle, followed by the call's number, as in Kimi's `functions.NAME:0`.
    markers: parts of the text that may be tokens of their own. The first one begins every call or list of calls, so
    that it tells calls from text; a format without markers has calls only at the very beginning of an answer.
    signs: each is a set of texts that stand together in the chat templates of such models.
    single: such models make one call at a time; their templates refuse turns with more.
    ids: how calls are named: "random" is OpenAI's form, "short" nine letters and digits (Mistral's templates ask for
    them), "written" what the model itself wrote (Kimi's template repeats it).
    """

    name: str
    call: str
    middle: str
    end: str
    begin: str = ""
    between: str = ""
    finish: str = ""
    number: str = ""
    markers: tuple[str, ...] = ()
    signs: tuple[tuple[str, ...], ...]
    single: bool = False
    ids: Literal["random", "short", "written"] = "random"

    @property
    def trigger(self) -> str:
        """What tells calls from text; "" where only their place does."""
        return self.markers[0] if self.markers else ""

    @property
    def opening(self) -> str:
        """What stands between the trigger and the first name."""
        return (self.begin + self.call)[len(self.trigger) :]


HERMES = ToolFormat(
    name="hermes",
    call='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    between="\n",
    markers=("<tool_call>", "</tool_call>"),
    signs=(("<tool_call>",),),
)
LLAMA3 = ToolFormat(
    name="llama3",
    call='{"name": "',
    middle='", "parameters": ',
    end="}",
    single=True,
    signs=(("<|start_header_id|>", '"parameters"'), ("<|python_tag|>",)),
)
MISTRAL = ToolFormat(
    name="mistral",
    begin="[TOOL_CALLS][",
    call='{"name": "',
    middle='", "arguments": ',
    end="}",
    between=", ",
    finish="]",
    markers=("[TOOL_CALLS]",),
    signs=(("[TOOL_CALLS]",),),
    ids="short",
)
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    call="[TOOL_CALLS]",
    middle="[ARGS]",
    end="",
    markers=("[TOOL_CALLS]", "[ARGS]"),
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
    ids="short",
)
DEEPSEEK = ToolFormat(
    name="deepseek",
    begin="<｜tool▁calls▁begin｜>",
    call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    between="\n",
    finish="<｜tool▁calls▁end｜>",
    markers=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    signs=(("<｜tool▁calls▁begin｜>", "```json"),),
)
DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    begin=DEEPSEEK.begin,
    call="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    end="<｜tool▁call▁end｜>",
    finish=DEEPSEEK.finish,
    markers=DEEPSEEK.markers,
    signs=(("<｜tool▁calls▁begin｜>",),),
)
KIMI = ToolFormat(
    name="kimi",
    begin="<|tool_calls_section_begin|>",
    call="<|tool_call_begin|>functions.",
    number=":",
    middle="<|tool_call_argument_begin|>",
    end="<|tool_call_end|>",
    finish="<|tool_calls_section_end|>",
    markers=(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    signs=(("<|tool_calls_section_begin|>",), ("<|im_middle|>",)),
    ids="written",
)

FORMATS = {
    one.name: one for one in (MISTRAL_ARGS, MISTRAL, DEEPSEEK, DEEPSEEK_V31, KIMI, HERMES, LLAMA3)
}  # the more particular signs first


def format_of(template: str) -> ToolFormat:
    """The format whose signs stand in a chat template; Hermes' where none does, as it needs no tokens of its own."""
    for one in FORMATS.values():
        if any(all(sign in template for sign in together) for together in one.signs):
            return one
    return HERMES


@dataclass(frozen=True, slots=True)
class Thinking:
    """What stands before and behind a model's reasoning."""

    open: str
    close: str


THINKING = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
)


def thinking_of(template: str, known: Iterable[Thinking] = THINKING) -> Thinking | None:
    """The reasoning markers that a chat template knows, None for models that do not reason.

    Some templates leave the opening to the model; all must know where an earlier turn's reasoning ended.
    """
    return next((one for one in known if one.close in template), None)
