"""What a chat template does not tell its model of tools, calls and results, as words in the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.text.messages import normalised
from overdrive.tools.formats import ToolFormat
from overdrive.tools.style import ChatStyle

Message = dict[str, Any]


def written_out(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], style: ChatStyle
) -> list[Message]:
    """`messages` (OpenAI's shape) with all that the template would drop or refuse turned into text.

    Tools are told of in the system message, calls in the turns that made them, results as what the user says.
    """
    turns = [_plain(message, style) for message in normalised(messages, knows_developer=True)]
    if not tools or style.shows.tools:
        return turns
    told = instructions(tools, style.form)
    if turns[0]["role"] in ("system", "developer"):
        first = turns[0]
        return [{**first, "content": f"{first['content']}\n\n{told}".lstrip()}, *turns[1:]]
    return [{"role": "system", "content": told}, *turns]


def instructions(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """What a model is told of its tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = calls_text([{"name": "NAME", "arguments": {"KEY": "VALUE"}}], form)
    return (
        f"You can call these functions:\n{listed}\n\n"
        f"To call one, answer with its name and arguments exactly like this:\n{example}"
    )


def calls_text(calls: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """Calls as the model writes them. calls: name and arguments (an object) of each."""
    written = [
        form.call
        + call["name"]
        + (f"{form.number}{index}" if form.number else "")
        + form.middle
        + json.dumps(call["arguments"], ensure_ascii=False)
        + form.end
        for index, call in enumerate(calls)
    ]
    return form.begin + form.between.join(written) + form.finish


def _plain(message: Message, style: ChatStyle) -> Message:
    if message["role"] == "tool" and not style.shows.results:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls or style.shows.calls:
        return message
    text = calls_text([call["function"] for call in calls], style.form)
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
