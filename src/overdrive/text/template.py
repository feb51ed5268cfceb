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
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from overdrive.errors import BadRequest, OverdriveError
from overdrive.text.messages import normalised

_MAX_CHARS = 16 << 20  # of rendered text, and of any string that a template multiplies
_MAX_ROUNDS = 100_000  # of all loops and macro calls of one rendering: well below a second
_MAX_BITS = 4096  # of a whole number that a template raises to a power
_TICK = "__round"


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
        except (jinja2.TemplateError, RecursionError) as error:
            raise OverdriveError(
                f"the chat template of {origin} is no valid Jinja ({error}); name another with --chat-template"
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
        for taken in (*given, _TICK):
            if taken in (chat_template_kwargs or {}):
                raise BadRequest(f"chat_template_kwargs must not set {taken!r}", "chat_template_kwargs")
        return self._run(self._compiled[name], variables | given)

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        pieces, length = [], 0
        try:
            for piece in template.generate(variables | {_TICK: _Budget(_MAX_ROUNDS).spend}):
                pieces.append(piece)
                length += len(piece)
                if length > _MAX_CHARS:
                    raise SecurityError(f"more than {_MAX_CHARS} characters of output")
        except Exception as error:  # a template can raise anything that Python's operators can
            said = " ".join(str(error).split()) or type(error).__name__
            raise BadRequest(f"the chat template failed on these messages: {said}", "messages") from error
        return "".join(pieces)


class _Budget:
    """Rounds that one rendering may still take."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def spend(self) -> str:
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"more than {_MAX_ROUNDS} rounds of its loops")
        return ""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with loops and macros that count their rounds and operators that cannot fill the memory."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and _size(left) * right > _MAX_BITS:
            raise SecurityError("a power beyond all use")
        if operator == "*" and max(_repeated(left, right), _repeated(right, left)) > _MAX_CHARS:
            raise SecurityError("a product beyond all use")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        loops: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
        for block in loops:
            count = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None, lineno=block.lineno)
            block.body.insert(0, nodes.ExprStmt(count, lineno=block.lineno).set_environment(self))
        return tree


def _size(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _repeated(value: Any, times: Any) -> int:
    """Elements of `value * times`: characters, items, or bits of a whole number."""
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        return len(value) * times
    return _size(value) + _size(times)


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
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
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
