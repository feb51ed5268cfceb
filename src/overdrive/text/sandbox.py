"""Where strangers' templates run: Jinja's immutable sandbox, which reads no files, runs no code and is slow to grow.

Loops and macros spend a budget of rounds, and whatever makes long texts of short ones (operators, filters, methods of
strings) is asked for the length before it begins. What a template builds up in many small steps is bounded by its
rounds alone, so a template is still to be chosen with some care; it can cost memory and a request, never a file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

MAX_CHARS = 16 << 20
"""Of any string that a template makes, and of what it renders."""
MAX_ROUNDS = 100_000
"""Of all loops and macro calls of one rendering: well below a second."""
_MAX_NUMBER = 100_000  # width, indent or count in a call that makes texts longer
_MAX_BITS = 4096  # of a whole number that a template raises to a power or multiplies
ROUND, JOIN = "__round", "__join"
_GROWING = frozenset(
    ("batch", "center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "replace", "rjust", "slice")
) | {"tojson", "translate", "wordwrap", "zfill"}
_DIGITS = re.compile(r"\d+")


class Budget:
    """Rounds that one rendering may still take."""

    def __init__(self) -> None:
        self._left = MAX_ROUNDS

    def spend(self) -> str:
        """One round. Raises SecurityError when none is left."""
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"more than {MAX_ROUNDS} rounds of its loops")
        return ""


def names() -> dict[str, Any]:
    """What every rendering must be given, by names that are nobody else's."""
    return {ROUND: Budget().spend, JOIN: _join}


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; templates rendered in it are given `names()`."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        for name in _GROWING & self.filters.keys():
            self.filters[name] = _checked(name, self.filters[name])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and _bits(left) * right > _MAX_BITS:
            raise SecurityError("a power beyond all use")
        if operator == "*" and max(_repeated(left, right), _repeated(right, left)) > MAX_CHARS:
            raise SecurityError("a product beyond all use")
        if operator == "+" and _length(left) + _length(right) > MAX_CHARS:
            raise SecurityError("a sum beyond all use")
        if operator == "%" and isinstance(left, str):
            _check("format", left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(called, "__wrapped__", called)  # Jinja wraps those that format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, bytes)):
            _check(getattr(method, "__name__", ""), owner, (*args, *kwargs.values()))
        return super().call(context, called, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Joins(self).visit(super()._parse(source, name, filename))
        loops: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
        for block in loops:
            count = nodes.Call(nodes.Name(ROUND, "load"), [], [], None, None, lineno=block.lineno)
            block.body.insert(0, nodes.ExprStmt(count, lineno=block.lineno).set_environment(self))
        return tree


class _Joins(NodeTransformer):
    """`a ~ b` becomes a call, since the sandbox has no say in the operator."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        called = nodes.Name(JOIN, "load", lineno=node.lineno)
        return nodes.Call(called, node.nodes, [], None, None, lineno=node.lineno).set_environment(self._environment)


def _join(*parts: Any) -> str:
    if sum(map(_length, parts)) > MAX_CHARS:
        raise SecurityError("a text beyond all use")
    return "".join(map(str, parts))


def _checked(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is asked how long its result may be."""

    @functools.wraps(work)  # with the mark of those that get the environment or the context first
    def filtered(*args: Any, **kwargs: Any) -> Any:
        value, *rest = args[1:] if hasattr(work, "jinja_pass_arg") else args
        _check(name, value, (*rest, *kwargs.values()))
        return work(*args, **kwargs)

    return filtered


def _check(name: str, value: Any, args: Iterable[Any]) -> None:
    """Raises SecurityError where `name` of `value`, so called, may make a text that is too long."""
    if name not in _GROWING:
        return
    args = list(args)
    numbers = [abs(one) for one in args if isinstance(one, int)]
    if name in ("format", "format_map"):
        numbers += [int(digits) for digits in _DIGITS.findall(str(value)[:MAX_CHARS])]
    if max(numbers, default=0) > _MAX_NUMBER:
        raise SecurityError(f"{name} with a number beyond all use")
    factor = max([1, *numbers, *map(_length, args)])
    if name == "join":
        _check_join(value, args)
    elif max(1, _length(value)) * factor > MAX_CHARS:
        raise SecurityError(f"{name} to a length beyond all use")


def _check_join(value: Any, args: list[Any]) -> None:
    """Of the filter (a list, and what is put between) or the method (the other way round)."""
    for one, other in ((value, args[0] if args else ""), (args[0] if args else [], value)):
        if isinstance(one, (list, tuple)):
            between = _length(other) if isinstance(other, str) else 0
            if sum(map(_length, one)) + between * len(one) > MAX_CHARS:
                raise SecurityError("join to a length beyond all use")
        elif isinstance(one, str) and isinstance(other, str) and len(one) * max(1, len(other)) > MAX_CHARS:
            raise SecurityError("join to a length beyond all use")


def _length(value: Any) -> int:
    """Characters or items; 0 for what has none."""
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _repeated(value: Any, times: Any) -> int:
    """Elements of `value * times`: characters or items; of numbers that are too long, more than are allowed."""
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        return len(value) * times
    return MAX_CHARS + 1 if _bits(value) + _bits(times) > _MAX_BITS else 0
