"""Tools: typed functions and methods that a policy may call.

A call that cannot be run (no such tool, wrong arguments, a `ToolError`) is answered with a message that says what was
wrong and how to do it right. Any other error of a tool is answered with its type and message, and logged: a policy that
finds a bug can neither end the episode with it nor escape what the episode would pay. A failure of infrastructure is
raised. How a signature becomes a schema is decided in `envgym.signatures`.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import FunctionType, MappingProxyType
from typing import TypeVar

from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.error_log import log_error
from envgym.errors import InfrastructureError, InvalidInput, ToolError, near_names
from envgym.signatures import Signature, usage

MAX_RESULT_CHARS = 20_000
"""A longer result is cut, with a note."""
MAX_CALLS = 64
"""Calls run for one action; the others are answered with a message."""

_MARK = "__envgym_tool__"
ErrorTypes = tuple[type[Exception], ...]
FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Description of a tool, for the policy."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments, an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that can be run."""

    spec: ToolSpec
    call: Callable[[object, JsonObject], object]
    """`call(owner, arguments)` checks the arguments and runs the tool; raises ToolError where it refuses."""
    max_chars: int = MAX_RESULT_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCalls:
    """What the calls of one action gave."""

    messages: tuple[Message, ...]
    """One `TOOL` message per call, in order, then one per malformed call."""
    num_errors: int
    """Calls that were refused, that raised, or that could not be read."""


def tool(function: FunctionT) -> FunctionT:
    """Mark a function or method as a tool; an overriding method stays one without being marked again."""
    setattr(function, _MARK, True)
    return function


def run_calls(tools: Mapping[str, Tool], owner: object, action: Action, *, propagated: ErrorTypes = ()) -> RanCalls:
    """Run the calls of `action` in order on `owner`; what cannot be run is answered with advice.

    Raises: InfrastructureError: a service that a tool uses failed. What a tool raises of the types `propagated`.
    """
    messages: list[Message] = []
    for index, call in enumerate(action.tool_calls):
        content, failed = _run(tools, owner, call, propagated) if index < MAX_CALLS else (_TOO_MANY, True)
        messages.append(Message(role=Role.TOOL, content=content, tool_call_id=call.id, name=call.name, is_error=failed))
    messages.extend(Message(role=Role.TOOL, content=reason, is_error=True) for reason in action.malformed)
    return RanCalls(messages=tuple(messages), num_errors=sum(message.is_error for message in messages))


_TOO_MANY = f"Not run: at most {MAX_CALLS} calls are run for one message. Send the others in your next message."


def _run(tools: Mapping[str, Tool], owner: object, call: ToolCall, propagated: ErrorTypes) -> tuple[str, bool]:
    """Return (content of the answer, whether the call failed)."""
    item = tools.get(call.name)
    if item is None:
        return _no_such_tool(call.name, tools), True
    try:
        return _cut(_as_text(item.call(owner, call.arguments)), item.max_chars), False
    except ToolError as refusal:
        return _cut(str(refusal), item.max_chars), True
    except Exception as error:
        if isinstance(error, (InfrastructureError, *propagated)):
            raise
        log_error(error, f"tool {call.name} failed, and the agent was answered with its error")
        return _cut(f"{call.name} failed: {type(error).__name__}: {error}", item.max_chars), True


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return str(result)
    if result is None:
        return "Done."
    return _COMPACT.encode(result)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters are shown]"


def _no_such_tool(name: str, tools: Mapping[str, Tool]) -> str:
    shown = name if len(name) <= 100 else name[:100] + "..."
    if not tools:
        return f"There is no tool {shown!r}: this task has no tools. Answer in plain text."
    near = near_names(name[:100], tools)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    known = "; ".join(usage(item.spec.name, item.spec.parameters) for item in tools.values())
    return f"There is no tool {shown!r}.{hint} The tools are: {known}."


# ---- from signatures to tools -------------------------------------------------------------------------------------


def _member_names(cls: type, wanted: Callable[[object], bool]) -> list[str]:
    """Return the names that `cls` or a base wrote with a wanted member; a subclass removes one by None."""
    names = {name: None for base in reversed(cls.__mro__[:-1]) for name, member in vars(base).items() if wanted(member)}
    return [name for name in names if getattr(cls, name, None) is not None]


def _is_marked(member: object) -> bool:
    return hasattr(getattr(member, "__func__", member), _MARK) or hasattr(member, _MARK)


def _is_method(member: object) -> bool:
    return isinstance(member, FunctionType | staticmethod | classmethod)


@cache  # reading signatures is slow
def collect_tools(cls: type) -> Mapping[str, Tool]:
    """Return the methods of `cls` marked with `@tool`, base classes first, in the order they are written.

    Raises: InvalidInput: a marked method that cannot be a tool (no docstring, no type hint, `*args` ...).
    """
    return MappingProxyType({name: _method_tool(cls, name) for name in _member_names(cls, _is_marked)})


@cache
def public_tools(cls: type, lifecycle: frozenset[str]) -> Mapping[str, Tool]:
    """Return all public methods of `cls` as tools, except those named in `lifecycle`."""
    names = [name for name in _member_names(cls, _is_method) if not name.startswith("_") and name not in lifecycle]
    return MappingProxyType({name: _method_tool(cls, name) for name in names})


@lru_cache(maxsize=1024)
def tools_of(*functions: Callable[..., object]) -> Mapping[str, Tool]:
    """Return plain functions as tools by name; they are called without an owner.

    Raises: InvalidInput: two functions share a name, or one cannot be a tool.
    """
    tools: dict[str, Tool] = {}
    for function in functions:
        item = _function_tool(function)
        if item.spec.name in tools:
            do = "rename one of the two"
            raise InvalidInput.of("tools", "have different names", item.spec.name, where="tools_of", do=do)
        tools[item.spec.name] = item
    return MappingProxyType(tools)


def _method_tool(cls: type, name: str) -> Tool:
    is_plain = not isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    signature = Signature.read(getattr(cls, name), where=f"{cls.__name__}.{name}", skip=1 if is_plain else 0)

    def call(owner: object, arguments: JsonObject) -> object:
        return getattr(owner, name)(**signature.check(name, arguments))

    return Tool(spec=_spec(name, signature), call=call)


def _function_tool(function: Callable[..., object]) -> Tool:
    name = getattr(function, "__name__", type(function).__name__)
    signature = Signature.read(function, where=name, skip=0)

    def call(owner: object, arguments: JsonObject) -> object:
        return function(**signature.check(name, arguments))

    return Tool(spec=_spec(name, signature), call=call)


def _spec(name: str, signature: Signature) -> ToolSpec:
    return ToolSpec(name=name, description=signature.description, parameters=signature.parameters)
