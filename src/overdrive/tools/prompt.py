"""Tools in the prompt of a model whose chat template does not know them: as words in the system message.

Earlier calls and their results, which such a template would drop or refuse, become text of the turns they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.text.messages import normalised
from overdrive.tools.formats import ToolFormat

Message = dict[str, Any]


def written_out(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> list[Message]:
    """`messages` (OpenAI's shape) without tool turns and tool calls, and with `tools` told of in the system message."""
    turns = [_plain(message, form) for message in normalised(messages, knows_developer=True)]
    if not tools:
        return turns
    told = instructions(tools, form)
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


def _plain(message: Message, form: ToolFormat) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = calls_text([call["function"] for call in calls], form)
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
