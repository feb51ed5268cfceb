"""Chat messages to prompt text, by the model's own Jinja template.

Templates come from strangers: they run in Jinja's immutable sandbox with a budget of output and of loop rounds, and
every fault of theirs is an error of the request. Names and filters are those that Hugging Face templates expect
(transformers, utils/chat_template_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SecurityError

from overdrive.errors import BadRequest, OverdriveError
from overdrive.text.messages import normalised
from overdrive.text.sandbox import JOIN, MAX_CHARS, ROUND, Sandbox
from overdrive.text.sandbox import names as sandbox_names

_MOST_INDENT = 64
_MOST_SAID = 500  # characters of a fault that a template itself words


class ChatTemplate:
    """One model's templates by name: "default", and "tool_use" where a model has another one for tools.

    special_tokens: `bos_token`, `eos_token` and the like, as templates write them. The rendered text holds them, so it
    is encoded with `add_special=False`.
    origin: where the templates come from, for messages. `source` is their text.
    Raises OverdriveError for text that is no valid Jinja.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str], origin: str) -> None:
        environment = _environment()
        self.source = templates.get("tool_use", "") + templates.get("default", "")
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        self._knows_developer = {name: "developer" in text for name, text in templates.items()}
        try:
            self._compiled = {name: environment.from_string(text) for name, text in templates.items()}
        except Exception as error:  # Jinja's own, or Python's where it compiles what Jinja has made of it
            raise OverdriveError(
                f"the chat template of {origin} is no valid Jinja ({_said(error)}); name another with --chat-template"
            ) from error

    @property
    def known(self) -> bool:
        """Whether the model has a template at all."""
        return bool(self._compiled)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of `messages` (OpenAI's shape), ending where the assistant is to speak.

        chat_template_kwargs: further names for the template (`enable_thinking`, ...).
        Raises BadRequest for messages that are malformed, that the template refuses or fails on, or that it makes too
        long, and for every chat when the model has no template.
        """
        name = "tool_use" if tools and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise BadRequest(
                f"{self._origin} has no chat template; start the server with --chat-template FILE", "messages"
            )
        variables = self._special_tokens | dict(chat_template_kwargs or {})
        given = {
            "messages": normalised(messages, self._knows_developer[name]),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        for taken in (*given, ROUND, JOIN):
            if taken in (chat_template_kwargs or {}):
                raise BadRequest(f"chat_template_kwargs must not set {taken!r}", "chat_template_kwargs")
        return self._run(self._compiled[name], variables | given)

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        pieces, length = [], 0
        try:
            for piece in template.generate(variables | sandbox_names()):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_CHARS:
                    raise SecurityError(f"more than {MAX_CHARS} characters of output")
        except Exception as error:  # a template can raise anything that Python's operators can
            raise BadRequest(f"the chat template failed on these messages: {_said(error)}", "messages") from error
        return "".join(pieces)


def _said(error: Exception) -> str:
    """In one line."""
    return " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's HTML escaping."""
    if indent is not None and not 0 <= indent <= _MOST_INDENT:
        raise SecurityError(f"an indent of {indent}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
