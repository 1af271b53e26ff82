"""Agents that do not read the task, and the hostile texts that any env must bear."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.spaces import UnicodeText
from envgym.seeds import generator
from envgym.tools import ToolSpec

Agent = Callable[[int, str], str]
"""(turn, last observation) -> action."""

TEXTS: Mapping[str, Any] = json.loads(files(__package__).joinpath("texts.json").read_text(encoding="ascii"))  # JSON
"""What agents say that do not read the task: lists of texts, the hostile ones also as [part, times] pairs."""
WORDS = ("yes", "no", "true", "false", "A", "B", "C", "D", "E", "none", "unknown", "done", "DONE", "stop")


def say(text: str) -> Agent:
    """Return the agent that always says `text`."""
    return lambda turn, observation: text


def echo(turn: int, observation: str) -> str:
    """Say what was shown."""
    return observation


def random_agent(tools: Sequence[ToolSpec], seed: int) -> Agent:
    """Return the agent that says a random text, number, word or tool call."""
    actions = random_actions(tools, seed)
    return lambda turn, observation: next(actions)


def random_actions(tools: Sequence[ToolSpec], seed: int, count: int | None = None) -> Iterator[str]:
    """Yield `count` random actions, endlessly many where it is None."""
    draw = generator("conformance", "random actions", seed)
    space = UnicodeText(seed=draw)
    index = 0
    while count is None or index < count:
        index += 1
        match int(draw.integers(4 if tools else 3)):
            case 0:
                yield space.sample()
            case 1:
                yield str(draw.integers(-10, 101))
            case 2:
                yield WORDS[draw.integers(len(WORDS))]
            case _:
                spec = tools[int(draw.integers(len(tools)))]
                yield call_text(spec.name, random_arguments(spec.parameters, draw))


def call_text(name: JsonValue, arguments: JsonValue) -> str:
    """Write a tool call as text."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def random_arguments(schema: JsonObject, draw: np.random.Generator, text: str | None = None) -> dict[str, JsonValue]:
    """Return arguments that fit an object schema; each string is `text` where one is given."""
    properties = schema.get("properties")
    parts = properties if isinstance(properties, dict) else {}
    return {name: _random_value(part, draw, text) for name, part in parts.items()}


def _random_value(schema: JsonValue, draw: np.random.Generator, text: str | None) -> JsonValue:
    if not isinstance(schema, dict):
        return None
    choices = schema.get("enum") or schema.get("anyOf")
    if isinstance(choices, list) and choices:
        choice = choices[int(draw.integers(len(choices)))]
        return choice if "enum" in schema else _random_value(choice, draw, text)
    match schema.get("type"):
        case "integer":
            return int(draw.integers(-10, 101))
        case "number":
            return float(round(draw.uniform(-10, 100), 2))
        case "boolean":
            return bool(draw.integers(2))
        case "array":
            return [_random_value(schema.get("items"), draw, text) for _ in range(int(draw.integers(4)))]
        case "object":
            return random_arguments(schema, draw, text)
        case "string":
            return text if text is not None else WORDS[draw.integers(len(WORDS))]
    return None


HOSTILE_TEXTS: tuple[str, ...] = tuple(
    parts if isinstance(parts, str) else "".join(part * times for part, times in parts) for parts in TEXTS["hostile"]
)
"""Texts that crash, hang or confuse careless parsers and graders."""

_HOSTILE_VALUES: tuple[JsonValue, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    [],
    {},
    {"a": {"b": {}}},
    *(text for text in HOSTILE_TEXTS if len(text) < 10_000 and "tool_call" not in text),
)
_ODD_ARGUMENTS: tuple[JsonValue, ...] = (None, [], "text", {}, {"no_such_argument": 1})


def hostile_actions(tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Yield every hostile text, and for each tool calls with missing, superfluous and hostile arguments."""
    yield from HOSTILE_TEXTS
    for spec in tools:
        properties = spec.parameters.get("properties")
        names = list(properties) if isinstance(properties, dict) else []
        for arguments in _ODD_ARGUMENTS:
            yield call_text(spec.name, arguments)
        for value in _HOSTILE_VALUES:
            yield call_text(spec.name, dict.fromkeys(names, value))
        yield call_text(spec.name, {}) * 1_000
