"""Which tools an answer may or must call, as clients say it, in OpenAI's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from overdrive.errors import BadRequest
from overdrive.grammar.schema import check_schema
from overdrive.strict import Model
from overdrive.structured import MAX_SCHEMA_CHARS, MAX_TOOLS, Schema, Structure, schema_text

NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class FunctionTool(Model):
    """A function as OpenAI describes it. `parameters` is a JSON schema of an object; without it the function takes no
    arguments."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    @property
    def arguments(self) -> Schema:
        """What the arguments are held to: an object, whether its schema says so or not."""
        if self.parameters:
            return {"type": "object", **self.parameters}
        return {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(Model):
    """One entry of `tools`."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Model):
    """A function by name."""

    name: str


class NamedTool(Model):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Model):
    """A selection from `tools`."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedChoice(Model):
    """`tool_choice` with a selection."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class Tooled(Model):
    """Which tools an answer may or must call."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request. shown: what the prompt tells of, as clients sent it. callable: what may be called now.

    required: an answer is calls and nothing else. parallel: it may hold more than one.
    """

    shown: tuple[Schema, ...]
    callable: tuple[FunctionTool, ...]
    required: bool
    parallel: bool


def tool_use(given: Tooled) -> ToolUse | None:
    """The tools an answer may call, None where it may call none.

    Raises BadRequest, naming the field, for tools that cannot be called and choices that are not among them.
    """
    functions = [tool.function for tool in given.tools or ()]
    choice = given.tool_choice
    if not functions and choice not in (None, "none", "auto"):
        raise BadRequest("tool_choice: there are no tools to choose from", "tool_choice")
    _check_tools(functions)
    if not functions or choice == "none":
        return None
    named = isinstance(choice, NamedTool)
    names = _chosen(choice, [one.name for one in functions])
    return ToolUse(
        shown=tuple(_shown(one) for one in functions),
        callable=tuple(one for one in functions if one.name in names),
        required=named or choice == "required" or (isinstance(choice, AllowedChoice) and _requires(choice)),
        parallel=given.parallel_tool_calls is not False and not named,
    )


def _requires(choice: AllowedChoice) -> bool:
    return choice.allowed_tools.mode == "required"


def _chosen(choice: Any, known: list[str]) -> list[str]:
    """Names of the functions that `tool_choice` leaves."""
    if isinstance(choice, NamedTool):
        names, field = [choice.function.name], "tool_choice.function.name"
    elif isinstance(choice, AllowedChoice):
        names, field = [one.function.name for one in choice.allowed_tools.tools], "tool_choice.allowed_tools.tools"
    else:
        return known
    for name in names:
        if name not in known:
            raise BadRequest(f"tool_choice: {name[:64]!r} is not among the tools", field)
    return names


def _check_tools(functions: list[FunctionTool]) -> None:
    seen: set[str] = set()
    left = MAX_SCHEMA_CHARS
    for index, one in enumerate(functions):
        field = f"tools[{index}].function"
        if one.name in seen:
            raise BadRequest(f"tools: the name {one.name!r} is taken twice", f"{field}.name")
        seen.add(one.name)
        if one.arguments.get("type", "object") != "object":
            raise BadRequest(f"{field}.parameters: must be a schema of an object", f"{field}.parameters")
        try:
            check_schema(one.arguments)
        except BadRequest as error:
            raise BadRequest(f"{field}.parameters: {error}", f"{field}.parameters") from None
        left -= len(schema_text(one.arguments, f"{field}.parameters"))
        if left < 0:
            raise BadRequest(f"tools: their schemas have more than {MAX_SCHEMA_CHARS} characters together", "tools")


def _shown(one: FunctionTool) -> Schema:
    function: Schema = {"name": one.name}
    if one.description is not None:
        function["description"] = one.description
    function["parameters"] = one.arguments
    return {"type": "function", "function": function}


def check_together(structure: Structure | None, use: ToolUse | None) -> None:
    """Raises BadRequest where an answer cannot be held to a structure and to tools at once."""
    if structure is None or use is None:
        return
    if use.required:
        raise BadRequest(f"{structure.field} is about text, but tool_choice leaves none", structure.field)
    if structure.schema is None:
        raise BadRequest(f"{structure.field}: with tools, the text can only be held to JSON", structure.field)
