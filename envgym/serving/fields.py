"""The types of the fields of messages, which are checked before anything reads them.

The other side may be any program. A field of another type is refused in one sentence here, so that no code behind this
module meets it. Fields that have no entry in a table are ignored.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from envgym.core.json_types import JsonObject
from envgym.env import ForkCapability
from envgym.errors import InvalidInput, check_known

_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
_NONE: Final = type(None)
_NUMBER: Final = (int, float)
_TEXT: Final = (str,)
_MAX_INDEX: Final = 2**63
_MAX_SEED: Final = 2**256
Types = tuple[type, ...]
Table = Mapping[str, Types]

REQUEST: Final[Table] = {
    "protocol": (int,),
    "version": _TEXT,
    "time": _NUMBER,
    "env": _TEXT,
    "settings": (dict,),
    "digest": _TEXT,
    "session": _TEXT,
    "to": _TEXT,
    "number": (int,),
    "keep": (bool,),
    "sessions": (list,),
    "split": _TEXT,
    "start": (int,),
    "count": (int,),
    "ids": (str, _NONE),
}
"""Of a request to an environment server."""
_OPENING: Final[Table] = {"seed": (int, _NONE), "options": (dict, _NONE)}
OPTIONS: Final[Table] = {"task": (dict, _NONE), "split": (str, _NONE), "index": (int, _NONE)}
"""Of the options of a reset."""
TASK: Final[Table] = {"id": _TEXT, "prompt": _TEXT, "payload": (dict,), "split": _TEXT, "metadata": (dict,)}
HIDDEN: Final[Table] = {"key": _TEXT, "index": (int, _NONE)}
ACTION: Final[Table] = {
    "text": _TEXT,
    "content": _TEXT,
    "thinking": (str, _NONE),
    "tool_calls": (list,),
    "malformed": (list,),
}
CALL: Final[Table] = {"name": _TEXT, "arguments": (dict,), "id": (str, _NONE)}
DESCRIPTION: Final[Table] = {
    "system_prompt": _TEXT,
    "fork_capability": _TEXT,
    "chance_score": _NUMBER,
    "optimum": (int, float, _NONE),
    "reward_range": (list,),
    "unchecked": (dict,),
    "max_turns": (int, _NONE),
    "tools": (list,),
    "sizes": (dict,),
    "digest": _TEXT,
    "call_s": _NUMBER,
    "lease_s": _NUMBER,
}
"""Of what a server says of an environment."""
FACTS: Final = ("system_prompt", "chance_score", "optimum", "reward_range", "unchecked", "max_turns")
"""Fields of a description that an environment may change when it begins an episode."""
BEGINNING: Final[Table] = {
    "task": (dict, _NONE),
    "observation": (str, dict),
    "plain": (str, dict, _NONE),
    "tools": (list, _NONE),
    "facts": (dict,),
}
"""Of the reply to a reset."""
TURN: Final[Table] = {
    "turn": (int,),
    "observation": (str, dict),
    "reward": (dict,),
    "ending": (str, _NONE),
    "tool_calls": (int,),
    "tool_errors": (int,),
    "error": (str, _NONE),
}
"""Of the reply to a step."""
_TURN_NAMES: Final = tuple(TURN)
_USUAL_TYPES: Final = (int, str, dict, _NONE, int, int, _NONE)
"""Of the fields of most turns, in the order of `TURN`: these are checked at once."""
_VALUE_NAMES: Final = {"value", "components"}
_TOOL: Final[Table] = {"name": _TEXT, "description": _TEXT, "parameters": (dict,)}
_MESSAGE: Final[Table] = {
    "role": _TEXT,
    "content": (str, list),
    "thinking": (str, _NONE),
    "tool_calls": (list,),
    "tool_call_id": (str, _NONE),
    "name": (str, _NONE),
    "is_error": (bool,),
}


def check_fields(data: object, table: Table, *, where: str, is_whole: bool = False) -> None:
    """Check the types of an object's fields.

    Args:
        data: the object.
        table: the types of each field.
        where: place of the object, for the sentence.
        is_whole: whether every field of the table must be there.

    Raises: InvalidInput: a field has another type, or is missing.
    """
    if type(data) is not dict:
        raise _wrong(where, (dict,), data, where)
    for name, value in data.items():
        types = table.get(name)
        if types is not None and type(value) not in types:
            raise _wrong(name, types, value, where)
    if is_whole and not table.keys() <= data.keys():
        missing = ", ".join(sorted(table.keys() - data.keys()))
        raise InvalidInput.of(where, f"have the field {missing}", "none", where="message", do="send what envgym sends")


def _wrong(name: str, types: Types, value: object, where: str) -> InvalidInput:
    must = f"be {' or '.join(_WORDS[kind] for kind in types)}"
    return InvalidInput.of(name, must, value, where=where, do="send what envgym sends")


def check_request(data: Mapping[str, Any], path: str) -> None:
    """Check the fields of a request to an environment server, but for what an env is told.

    Raises: InvalidInput: a field has another type.
    """
    check_fields(data, REQUEST, where=path)
    if data.get("sessions"):
        check_items(data["sessions"], _TEXT, where="sessions")


def check_opening(data: Mapping[str, Any], path: str) -> None:
    """Check what a request says of a new episode. Raises: InvalidInput: a field has another type or a wrong value."""
    check_fields(data, _OPENING, where=path)
    seed, options = data.get("seed"), data.get("options")
    if seed and not 0 <= seed < _MAX_SEED:
        raise InvalidInput.of("seed", "be from 0 to 2**256 - 1", seed, where=path, do="send what envgym sends")
    if options:
        check_fields(options, OPTIONS, where="options")
        _check_index(options.get("index"), "options")


def _check_index(index: int | None, where: str) -> None:
    if index and not 0 <= index < _MAX_INDEX:
        raise InvalidInput.of("index", "be from 0 to 2**63 - 1", index, where=where, do="send what envgym sends")


def check_action(action: Any) -> None:  # JSON
    """Check an action as it is sent. Raises: InvalidInput: a field has another type, or is missing."""
    if type(action) is not str:
        check_fields(action, ACTION, where="action", is_whole=True)
        check_items(action["malformed"], _TEXT, where="malformed")
        for call in action["tool_calls"]:
            check_fields(call, CALL, where="tool_calls", is_whole=True)


def check_task(data: Mapping[str, Any]) -> None:
    """Check a task. Raises: InvalidInput: a field has another type, or is missing."""
    check_fields(data, TASK, where="task", is_whole=True)
    if "hidden" in data:
        check_fields(data["hidden"], HIDDEN, where="hidden", is_whole=True)
        _check_index(data["hidden"]["index"], "task")


def check_items(values: Iterable[object], types: Types, *, where: str) -> None:
    """Check the types of the items of a list. Raises: InvalidInput: one has another type."""
    for value in values:
        if type(value) not in types:
            raise _wrong(f"each of {where}", types, value, where)


def check_description(data: JsonObject) -> None:
    """Check what a server says of an environment. Raises: InvalidInput: a field has another type or a wrong value."""
    check_fields(data, DESCRIPTION, where="description", is_whole=True)
    _check_facts(data)
    described: Any = data  # whose types were checked
    check_known("fork_capability", described["fork_capability"], list(ForkCapability), where="description")
    for item in described["tools"]:
        check_fields(item, _TOOL, where="tools", is_whole=True)
    check_items(described["sizes"].values(), (int, _NONE), where="sizes")
    for name in ("call_s", "lease_s"):
        if not 0 < described[name] <= 1e6:
            must = "be above 0 and at most a million seconds"
            raise InvalidInput.of(name, must, described[name], where="description", do="ask who runs the server")


def _check_facts(data: Any) -> None:  # JSON whose types were checked
    bounds = data.get("reward_range", [0, 1])
    check_items(bounds, _NUMBER, where="reward_range")
    numbers = [*bounds, *(data[name] for name in ("chance_score", "optimum") if data.get(name) is not None)]
    if len(bounds) != 2 or any(map(math.isnan, numbers)):
        must = "be two numbers" if len(bounds) != 2 else "be numbers"
        raise InvalidInput.of("reward_range", must, numbers, where="description", do="ask who runs the server")
    check_items(data.get("unchecked", {}).values(), _TEXT, where="unchecked")


def check_beginning(data: JsonObject) -> None:
    """Check the reply to a reset. Raises: InvalidInput: a field has another type, or is missing."""
    check_fields(data, BEGINNING, where="reply to reset", is_whole=True)
    reply: Any = data  # whose types were checked
    check_fields(reply["facts"], {name: DESCRIPTION[name] for name in FACTS}, where="facts")
    _check_facts(reply["facts"])
    if reply["task"] is not None:
        check_task(reply["task"])
    for item in reply["tools"] or ():
        check_fields(item, _TOOL, where="tools", is_whole=True)
    check_observation(reply["observation"])
    check_observation(reply["plain"])


def check_turn(data: JsonObject) -> None:
    """Check the reply to a step. Raises: InvalidInput: a field has another type, or is missing."""
    if tuple(data) == _TURN_NAMES and tuple(map(type, data.values())) == _USUAL_TYPES:
        usual: Any = data["reward"]  # an object
        if usual.keys() == _VALUE_NAMES and type(usual["value"]) is float and usual["components"] == {}:
            return
    check_fields(data, TURN, where="reply to step", is_whole=True)
    reply: Any = data  # whose types were checked
    check_observation(reply["observation"])
    reward = reply["reward"]
    values = [] if "cause" in reward else [reward.get("value"), *_components(reward)]
    check_items(values, _NUMBER, where="reward")


def _components(reward: Any) -> Iterable[object]:  # JSON
    components = reward.get("components", {})
    check_fields(components, {}, where="components")
    return chain(components.values())


def check_observation(data: Any) -> None:  # JSON
    """Check an observation as it is sent. Raises: InvalidInput: a field has another type, or is missing."""
    if type(data) is not dict:
        return
    check_fields(data, {"text": _TEXT, "messages": (list,)}, where="observation", is_whole=True)
    for item in data["messages"]:
        check_fields(item, _MESSAGE, where="message")
        check_fields(item, {"role": _TEXT, "content": (str, list)}, where="message", is_whole=True)
        for part in item["content"] if type(item["content"]) is list else ():
            check_fields(part, {"type": _TEXT, "text": _TEXT}, where="part of a message", is_whole=True)
        for call in item.get("tool_calls", ()):
            check_fields(call, CALL, where="tool_calls", is_whole=True)
