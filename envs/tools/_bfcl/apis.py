"""The stateful APIs of the multi-turn questions: instances, calls on them, and what the right calls make of them.

The classes are the wheel's. What they answer is written as the leaderboard writes it, since answers are compared.
"""

import ast
import copy
import decimal
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from threading import RLock
from typing import Any

from envgym.core.json_types import JsonValue
from envgym.core.messages import ToolCall
from envgym.envs.tools._bfcl.answers import tool_name
from envgym.envs.tools._bfcl.source import DOCUMENTS, CallQuestion, question
from envgym.errors import ToolError

MAX_PRECISION = 1_000
"""Digits that the calculator works with; more would keep it busy for ever."""
MAX_POWER_BITS = 10_000
MAX_DEPTH = 30
"""Directories inside each other: deeper ones could not be copied."""
MAX_ENTRIES = 5_000
"""Files and directories, counted once for each path that leads to them."""
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_WITHOUT_STATE = "MathAPI"
_LOCK = RLock()
"""The precision of `mpmath`, and some answers of the car, belong to all instances."""

Instance = Any  # the wheel has no types


class BfclApis:
    """The instances of an episode. A fork shares them until one of the two goes on."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._instances = instances
        self._is_shared = False

    @classmethod
    def of(cls, item: CallQuestion) -> "BfclApis":
        """Return the instances at the start of a question."""
        assert item.config is not None, "a multi-turn question"
        instances = {name: _load_class(name)() for name in item.classes}
        for name, instance in instances.items():
            if name != _WITHOUT_STATE:
                config = copy.deepcopy(item.config.get(name, {}))
                instance._load_scenario(config, long_context=item.kind == "multi_turn_long_context")
        return cls(instances)

    def fork(self) -> "BfclApis":
        """Return an independent copy, at once; what is shared is copied before either of the two goes on."""
        twin = BfclApis(self._instances)
        self._is_shared = twin._is_shared = True
        return twin

    def run(self, name: str, arguments: Mapping[str, JsonValue]) -> tuple[str, bool]:
        """Call a function; return what it answers, and whether it failed."""
        if self._is_shared:
            self._instances, self._is_shared = copy.deepcopy(self._instances), False
        owner = _owners(tuple(self._instances))[name]
        try:
            with _LOCK, decimal.localcontext():
                _check_costs(self._instances[owner], name, arguments)
                return _as_text(getattr(self._instances[owner], name)(**arguments)), False
        except Exception as error:  # noqa: BLE001  # as at the leaderboard, whatever a function raises is told to the caller
            return f"Error during execution: {error}", True

    def differs_from(self, other: "BfclApis") -> bool:
        """Compare the public attributes of all instances, as the leaderboard does."""
        pairs = [(instance, other._instances[name]) for name, instance in self._instances.items()]
        return any(_public(one) != _public(two) for one, two in pairs)


def _public(instance: Instance) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}


def _as_text(result: object) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _load_class(name: str) -> Any:
    return getattr(import_module(f"{_MODULES}.{DOCUMENTS[name]}"), name)


@cache
def _owners(classes: tuple[str, ...]) -> Mapping[str, str]:
    """Return for each function the class that has it, the last of several."""
    owners: dict[str, str] = {}
    for cls in classes:
        owners |= {name: cls for name, _ in inspect.getmembers(_load_class(cls), inspect.isfunction) if name[0] != "_"}
    return owners


# ---- what would not end -------------------------------------------------------------------------------------------


def _check_costs(instance: Instance, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a call that would take for ever, or make what cannot be copied. Raises: ToolError."""
    if name in ("mkdir", "cp", "mv"):
        _check_files(instance, name, arguments)
    elif name == "power":
        base, exponent = arguments.get("base"), arguments.get("exponent")
        if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_POWER_BITS:
            raise ToolError(f"the result has more than {MAX_POWER_BITS} bits")
    for key in ("precision", "decimal_places"):
        digits = arguments.get(key, 0)
        if isinstance(digits, int | float) and abs(digits) > MAX_PRECISION:
            raise ToolError(f"{key} is at most {MAX_PRECISION}")


def _check_files(system: Instance, name: str, arguments: Mapping[str, Any]) -> None:
    source, destination = arguments.get("source"), arguments.get("destination")
    if name == "cp" and source == destination:
        raise ToolError(f"cannot copy '{source}' into itself")
    depth, place = 0, system._current_dir
    while (place := place.parent) is not None and depth <= MAX_DEPTH:
        depth += 1
    entries = 0
    for level in _levels(system.root):
        entries, deepest = entries + 1, max(depth, level)
        if entries > MAX_ENTRIES or deepest > MAX_DEPTH:
            raise ToolError(f"there are at most {MAX_ENTRIES} files and {MAX_DEPTH} levels of directories")


def _levels(root: Instance) -> Iterator[int]:
    pending = [(root, 0)]
    while pending:
        entry, level = pending.pop()
        yield level
        pending += [(part, level + 1) for part in getattr(entry, "contents", {}).values()]


# ---- the right calls ----------------------------------------------------------------------------------------------


@cache
def golden_calls(kind: str, name: str) -> tuple[tuple[ToolCall, ...], ...]:
    """Return the right calls of each turn, with all arguments by name."""
    item = question(kind, name)
    owners = _owners(item.classes)
    return tuple(tuple(_read_call(str(text), owners) for text in _texts(turn)) for turn in item.answers)


def _texts(turn: JsonValue) -> list[JsonValue]:
    assert isinstance(turn, list), "as the wheel's files are written"
    return turn


def _read_call(text: str, owners: Mapping[str, str]) -> ToolCall:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), "as the wheel's files are written"
    name = ast.unparse(call.func)
    positional = [ast.literal_eval(part) for part in call.args]
    named = {str(part.arg): ast.literal_eval(part.value) for part in call.keywords}
    _, *parameters = inspect.signature(getattr(_load_class(owners[name]), name)).parameters
    return ToolCall(name=tool_name(name), arguments={**dict(zip(parameters, positional, strict=False)), **named})


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """What the right calls of a question make."""

    start: BfclApis
    """Nobody may call these instances, nor those below; they are forked."""
    after: tuple[BfclApis, ...]
    """The instances after each turn."""
    answers: tuple[tuple[str, ...], ...]
    """What the calls of each turn were answered."""


@lru_cache(maxsize=64)  # a long context takes megabytes
def golden_run(kind: str, name: str) -> GoldenRun:
    start = BfclApis.of(question(kind, name))
    apis, after, answers = start.fork(), [], []
    for calls in golden_calls(kind, name):
        answers.append(tuple(apis.run(call.name, call.arguments)[0] for call in calls))
        after.append(apis)
        apis = apis.fork()
    return GoldenRun(start=start, after=tuple(after), answers=tuple(answers))
