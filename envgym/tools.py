"""Tools: typed functions and methods that a policy may call.

A call that cannot be run (no such tool, wrong arguments, a `ToolError`) is answered with a message that says what was
wrong and how to do it right. Any other error of a tool is answered with its type and message, and logged: a policy that
finds a bug can neither end the episode with it nor escape what the episode would pay. A failure of infrastructure is
raised. How a signature becomes a schema is decided in `envgym.core.signatures`.
"""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import FunctionType, MappingProxyType
from typing import TypeVar

from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.core.messages import ToolSpec as ToolSpec  # noqa: PLC0414  # trees record it, below tools
from envgym.core.signatures import Signature, tool_name, usage
from envgym.core.tool_results import as_text
from envgym.errors import InfrastructureError, InvalidInput, ToolError, near_names
from envgym.runtime.error_log import log_error

MAX_RESULT_CHARS = 20_000
"""A longer result is cut, with a note."""
MAX_CALLS = 64
"""Calls run for one action; the others are answered with a message."""
MAX_CALLS_S = 120.0
"""Seconds for the calls of one action; those that have not begun by then are answered with a message."""

_MARK = "__envgym_tool__"
ErrorTypes = tuple[type[Exception], ...]
FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


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
    end = time.monotonic() + MAX_CALLS_S
    for index, call in enumerate(action.tool_calls):
        if index >= MAX_CALLS:
            content, failed = _TOO_MANY, True
        elif index and time.monotonic() >= end:
            content, failed = _TOO_LONG, True
        else:
            content, failed = _run(tools, owner, call, propagated)
        messages.append(Message(role=Role.TOOL, content=content, tool_call_id=call.id, name=call.name, is_error=failed))
    messages.extend(Message(role=Role.TOOL, content=reason, is_error=True) for reason in action.malformed)
    return RanCalls(messages=tuple(messages), num_errors=sum(message.is_error for message in messages))


_TOO_MANY = f"Not run: at most {MAX_CALLS} calls are run for one message. Send the others in your next message."
_TOO_LONG = f"Not run: the calls before took more than {MAX_CALLS_S:g} s. Send the others in your next message."


def _run(tools: Mapping[str, Tool], owner: object, call: ToolCall, propagated: ErrorTypes) -> tuple[str, bool]:
    """Return (content of the answer, whether the call failed)."""
    item = tools.get(call.name)
    if item is None:
        return _no_such_tool(call.name, tools), True
    try:
        return _cut(as_text(item.call(owner, call.arguments)), item.max_chars), False
    except ToolError as refusal:
        return _cut(str(refusal), item.max_chars), True
    except Exception as error:
        if isinstance(error, (InfrastructureError, *propagated)):
            raise
        log_error(error, f"tool {call.name} failed, and the agent was answered with its error")
        return _cut(f"{call.name} failed: {type(error).__name__}: {error}", item.max_chars), True


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters are shown]"


def _no_such_tool(name: str, tools: Mapping[str, Tool]) -> str:
    short_name = name if len(name) <= 100 else name[:100] + "..."
    if not tools:
        return f"There is no tool {short_name!r}: this task has no tools. Answer in plain text."
    near = near_names(name[:100], tools)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    usages = "; ".join(usage(item.spec.name, item.spec.parameters) for item in tools.values())
    return f"There is no tool {short_name!r}.{hint} The tools are: {usages}."


# ---- from signatures to tools -------------------------------------------------------------------------------------


def _member_names(cls: type, accept: Callable[[object], bool]) -> list[str]:
    """Return the names that `cls` or a base wrote with a wanted member; a subclass removes one by None."""
    names = {name: None for base in reversed(cls.__mro__[:-1]) for name, member in vars(base).items() if accept(member)}
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


class _Identity:
    """A function, equal to itself alone: objects that can be called may have no hash."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __hash__(self) -> int:
        return id(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.function is self.function


def tools_of(*functions: Callable[..., object]) -> Mapping[str, Tool]:
    """Return functions, partial functions and callable objects as tools by name; they are called without an owner.

    Raises: InvalidInput: two of them share a name, or one cannot be a tool.
    """
    return _tools_of(*map(_Identity, functions))


@lru_cache(maxsize=1024)
def _tools_of(*functions: _Identity) -> Mapping[str, Tool]:
    tools: dict[str, Tool] = {}
    for identity in functions:
        item = _function_tool(identity.function)
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
    name = tool_name(function)
    signature = Signature.read(function, where=name, skip=0)

    def call(owner: object, arguments: JsonObject) -> object:
        return function(**signature.check(name, arguments))

    return Tool(spec=_spec(name, signature), call=call)


def _spec(name: str, signature: Signature) -> ToolSpec:
    return ToolSpec(name=name, description=signature.description, parameters=signature.parameters)
