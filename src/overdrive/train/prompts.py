"""The prompts file: JSON lines, each a conversation that waits for the target's answer. Checked whole, before any work.

A line is an object with exactly one of `prompt` (text), `messages` (OpenAI's shape, the user speaks last) or `turns`
(texts the user says one after another), and optionally `id`, `category`, `license` and `source`; other fields are
left alone. Knows the file and the chat template; must never know a model's weights.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.errors import BadRequest, OverdriveError
from overdrive.json_text import parse_json

if TYPE_CHECKING:
    from overdrive.text import ChatTemplate, Tokenizer

_FORMS = ("prompt", "messages", "turns")
_LABELS = ("id", "category", "license", "source")
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation to answer. line: its line in the file, from 1.

    messages: what stands before the first answer, the user last. later_turns: what the user says after each answer.
    """

    line: int
    messages: tuple[Mapping[str, Any], ...]
    later_turns: tuple[str, ...] = ()
    id: str = ""
    category: str = ""
    license: str = ""
    source: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt of a .jsonl or .jsonl.gz file; blank lines are skipped.

    Raises OverdriveError, naming file and line, for a file that is missing, empty or damaged, and for the first line
    that is no JSON object or has the wrong fields.
    """
    prompts = [_parse(text, f"{path} line {line}", line) for line, text in _lines(path) if text.strip()]
    if not prompts:
        raise OverdriveError(f"{path} holds no prompts: it is empty")
    return prompts


def encode_prompts(
    prompts: Sequence[Prompt], path: Path, tokenizer: Tokenizer, template: ChatTemplate, max_tokens: int
) -> list[list[int]]:
    """Ids of each prompt's messages, rendered so that the assistant is to speak.

    path: the file, for messages. max_tokens: most that a prompt may have, so that an answer fits behind it.
    Raises OverdriveError, naming file and line, for a prompt that is longer or that the chat template refuses.
    """
    return [_encode(prompt, f"{path} line {prompt.line}", tokenizer, template, max_tokens) for prompt in prompts]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a plain or compressed file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line, text in enumerate(file, 1):
                try:
                    yield line, text.decode("utf-8-sig" if line == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise OverdriveError(f"{path} line {line} is not UTF-8: {error.reason}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise OverdriveError(f"cannot read prompts from {path}: {getattr(error, 'strerror', None) or error}") from None


def _parse(text: str, place: str, line: int) -> Prompt:
    try:
        row = parse_json(text)
    except ValueError as error:
        raise OverdriveError(f"{place} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise OverdriveError(f"{place} is not a JSON object with prompt, messages or turns")
    given = [form for form in _FORMS if row.get(form) is not None]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else f"has the fields {', '.join(row) or '(none)'}"
        raise OverdriveError(f"{place} {what}; it needs exactly one of prompt, messages and turns")
    messages, later = _PARSERS[given[0]](row[given[0]], place)
    labels = {name: str(row[name]) for name in _LABELS if row.get(name) is not None}
    return Prompt(line=line, messages=messages, later_turns=later, **labels)


_Parsed = tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]


def _parse_prompt(prompt: Any, place: str) -> _Parsed:
    if not isinstance(prompt, str) or not prompt.strip():
        raise OverdriveError(f"{place}: prompt must be a text that is not empty")
    return ({"role": "user", "content": prompt},), ()


def _parse_turns(turns: Any, place: str) -> _Parsed:
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise OverdriveError(f"{place}: turns must be a list of texts that are not empty")
    return ({"role": "user", "content": turns[0]},), tuple(turns[1:])


def _parse_messages(messages: Any, place: str) -> _Parsed:
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise OverdriveError(f"{place}: messages must be a list of objects with role and content")
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            raise OverdriveError(f"{place}: messages[{index}].role must be one of {', '.join(_ROLES)}")
    if messages[-1]["role"] not in ("user", "tool"):
        raise OverdriveError(f"{place}: the last message must be the user's, for the target answers it")
    return tuple(messages), ()


_PARSERS = {"prompt": _parse_prompt, "messages": _parse_messages, "turns": _parse_turns}


def _encode(prompt: Prompt, place: str, tokenizer: Tokenizer, template: ChatTemplate, max_tokens: int) -> list[int]:
    try:
        ids = tokenizer.encode(template.render(prompt.messages), add_special=False)
    except BadRequest as error:
        raise OverdriveError(f"{place}: {error}") from None
    if len(ids) > max_tokens:
        raise OverdriveError(
            f"{place}: the prompt has {len(ids)} tokens, but at most {max_tokens} leave room to answer"
        )
    return ids
