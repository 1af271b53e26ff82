"""From a typed, documented function to a description, a JSON schema and a check of arguments.

The schema comes from the type hints, the words from the docstring (Google style: summary, then `Args:`). Values are
read as pydantic does by default, because models write numbers as strings: "3" is accepted for an int, "true" for a
bool, but 3 is not accepted for a str, and NaN and infinities for nothing.
"""

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, ValidationError
from pydantic import create_model as create_pydantic_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import ErrorDetails

from envgym.core.json_types import JsonObject, JsonValue
from envgym.errors import InvalidInput, ToolError, near_names

_SECTION = re.compile(r"(?:Args|Arguments|Returns|Yields|Raises|Examples?|Notes?):\s*")
_ARGUMENT = re.compile(r"(\w+)(?: *\([^)]*\))?: *(.*)")
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A function as a tool sees it."""

    description: str
    parameters: JsonObject
    """JSON schema, an object."""
    names: tuple[str, ...]
    model: type[BaseModel]
    """Has one field per parameter, in order, named `p0`, `p1` ... so that any parameter name is free to use."""

    @classmethod
    def read(cls, function: Callable[..., object], *, where: str, skip: int) -> "Signature":
        """Read `function` without its first `skip` parameters.

        A partial function takes its words and hints from the function behind it, without the arguments that are bound;
        a callable object takes them from its `__call__`, and without a docstring there from its class.

        Raises: InvalidInput: no docstring or one on other arguments, no type hint, `*args`, a coroutine function.
        """
        source, bound, docstring = _source_of(function)
        if any(map(inspect.iscoroutinefunction, (function, source))) or inspect.isasyncgenfunction(source):
            do = "call blocking code inside a plain def"
            raise _refusal(where, "be a plain function", "a coroutine function", do)
        description, words = _read_docstring(docstring)
        if not description:
            raise _refusal(where, "have a docstring", "none", "say in one sentence what the tool does")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise _refusal(where, "have a signature that can be read", str(error), "write a plain def") from None
        parameters = [item for item in [*signature.parameters.values()][skip:] if item.name not in bound]
        names = tuple(parameter.name for parameter in parameters)
        stray = [name for name in words if name not in names] if source is function else []
        if stray:
            raise _refusal(
                where, f"document only its arguments ({', '.join(names)})", stray[0], "correct the docstring"
            )
        model = _arguments_model(source, parameters, words, where)
        schema = model.model_json_schema(schema_generator=_PlainSchema)
        schema.pop("title", None)
        schema.pop("description", None)
        return cls(description=description, parameters=schema, names=names, model=model)

    def check(self, tool: str, arguments: JsonObject) -> dict[str, Any]:  # Any: as the author's hints say
        """Return the arguments by name, as the hinted types. Raises: ToolError: what is wrong, and the usage."""
        try:
            checked = self.model.model_validate(arguments)
        except ValidationError as error:
            decoded = self._check_decoded(arguments, error)
            if decoded is None:
                raise ToolError(self._advice(tool, error)) from None
            checked = decoded
        return dict(zip(self.names, checked.__dict__.values(), strict=True))

    def _check_decoded(self, arguments: JsonObject, error: ValidationError) -> BaseModel | None:
        """Return the arguments with lists, objects and null read from texts that hold them as JSON; None: no reading.

        Some models write them so; a text that fits its hint as it stands was accepted before.
        """
        decoded = dict(arguments)
        for name in {item["loc"][0] for item in error.errors(include_url=False, include_context=False) if item["loc"]}:
            text = arguments.get(str(name))
            if isinstance(text, str) and text.strip()[:1] in ("[", "{", "n"):
                with suppress(ValueError, RecursionError):
                    decoded[str(name)] = json.loads(text)
        if decoded == arguments:
            return None
        try:
            return self.model.model_validate(decoded)
        except ValidationError:
            return None

    def _advice(self, tool: str, error: ValidationError) -> str:
        problems = error.errors(include_url=False, include_context=False)
        more = f"; and {len(problems) - _SHOWN_PROBLEMS} more" if len(problems) > _SHOWN_PROBLEMS else ""
        faults = "; ".join(self._problem(item) for item in problems[:_SHOWN_PROBLEMS])
        return f"{tool} was not run: {faults}{more}. Usage: {usage(tool, self.parameters)}."

    def _problem(self, item: ErrorDetails) -> str:
        path = ".".join(str(part) for part in item["loc"]) or "arguments"
        short = path if len(path) <= 100 else path[:100] + "..."
        if item["type"] == "missing":
            return f"argument {short!r} is missing"
        if item["type"] == "extra_forbidden":
            near = near_names(path[:100], self.names)
            return f"there is no argument {short!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
        got = repr(item["input"])
        message = item["msg"][:1].lower() + item["msg"][1:]
        return f"argument {short!r}: {message}, got {got if len(got) <= 100 else got[:100] + '...'}"


def tool_name(function: Callable[..., object]) -> str:
    """Return the name of a function, of the function behind a partial one, or of the class of a callable object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _source_of(function: Callable[..., object]) -> tuple[Callable[..., object], frozenset[str], str]:
    """Return the callable that has a function's hints, the names of its bound arguments, and the docstring."""
    bound: set[str] = set()
    while isinstance(function, partial):
        bound |= function.keywords.keys()
        function = function.func
    docstring = inspect.getdoc(function) or ""
    if not (inspect.isroutine(function) or isinstance(function, type) or hasattr(function, "__wrapped__")):
        function = type(function).__call__
        docstring = inspect.cleandoc(function.__doc__ or docstring)
    return function, frozenset(bound), docstring


def usage(name: str, parameters: JsonObject) -> str:
    """Write a tool on one line, as `name(first: string, second: integer = 2)`."""
    required, properties = parameters.get("required"), parameters.get("properties")
    parts = []
    for key, schema in properties.items() if isinstance(properties, Mapping) else ():
        is_required = isinstance(required, list) and key in required
        default = schema.get("default") if isinstance(schema, Mapping) else None
        parts.append(f"{key}: {_type_name(schema)}" + ("" if is_required else f" = {json.dumps(default)}"))
    return f"{name}({', '.join(parts)})"


def _type_name(schema: JsonValue) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    for key in ("enum", "anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list):
            return " | ".join(repr(option) if key == "enum" else _type_name(option) for option in options)
    if "const" in schema:
        return repr(schema["const"])
    if schema.get("type") == "array":
        return f"array of {_type_name(schema.get('items'))}"
    return str(schema.get("type", "object" if "$ref" in schema else "any"))


class _PlainSchema(GenerateJsonSchema):
    """JSON schema without the titles that only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # Any: pydantic's own annotation is private
        return False

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> dict[str, Any]:  # Any: see above
        self.ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}
        return super().generate(schema, mode)


def _arguments_model(
    function: Callable[..., object], parameters: list[inspect.Parameter], words: Mapping[str, str], where: str
) -> type[BaseModel]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise _refusal(where, "have type hints that exist at run time", str(error), "import the type") from None
    fields: dict[str, Any] = {}  # Any: pydantic's field definitions
    for index, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _refusal(where, "take arguments by name", f"{parameter}", "name each argument")
        if parameter.name not in hints:
            raise _refusal(where, "have a type hint for each argument", f"none for {parameter.name}", "add it")
        default = ... if parameter.default is parameter.empty else parameter.default
        field = Field(default, alias=parameter.name, description=words.get(parameter.name))
        fields[f"p{index}"] = (hints[parameter.name], field)
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=False)
    try:
        return create_pydantic_model("Arguments", __config__=config, **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise _refusal(where, "have type hints that JSON can fill", reason, "use plain types") from None


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return (the words before the first section, words per argument)."""
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if _SECTION.fullmatch(line)), len(lines))
    description = "\n".join(lines[:first]).strip()
    words: dict[str, str] = {}
    section, name, indent = "", "", 0
    for line in lines[first:]:
        margin = len(line) - len(line.lstrip())
        if not margin and line.strip():
            section, name = line.strip(), ""
        elif section in ("Args:", "Arguments:") and line.strip():
            match = _ARGUMENT.fullmatch(line.strip())
            if match and (not name or margin <= indent):
                name, indent = match[1], margin
                words[name] = match[2]
            elif name:
                words[name] = f"{words[name]} {line.strip()}".strip()
    return description, words


def _refusal(where: str, must: str, got: str, do: str) -> InvalidInput:
    return InvalidInput.of("tool", must, got, where=where, do=do)
