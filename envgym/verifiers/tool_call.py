"""Calls of tools, compared with the calls that are expected: their names, the names of their arguments, and the values.

    S = |N_P & N_G| / |N_P | N_G| + max over matchings M of sum_{(p, g) in M} (|K_p & K_g| / |K_p | K_g| + V(p, g))
    S_max = 1 + |G| + sum_g |K_g|,   correctness = S / S_max,   score = w format + (1 - w) correctness,   w = 1/7

P are the calls that were made, G the expected ones; N are their names, as multisets; K the names of a call's arguments;
V counts equal values; a matching pairs calls of one name, each at most once. Format is 1 where every call could be read
and calls were made just where some are expected. Without expected calls the score is 1 for none, else 0.

Source: 2504.13958 (ToolRL), whose reward is format + 6 S / S_max - 3, from -3 to 4; the score is that, scaled to
[0, 1]. Names count as often as they are called, and the matching is optimal; the format there is one of tags.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, ToolCall
from envgym.core.tasks import Task
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.verifiers.base import Verdict, bad_key, key_of

FORMAT_WEIGHT = 1 / 7
"""Share of the format: 1 of the 7 points between the lowest and the highest reward of ToolRL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A call that is expected, with the values that each argument may have."""

    name: str
    accepts: Mapping[str, Callable[[JsonValue], bool]]
    """Argument -> whether a value is right."""
    optional: frozenset[str] = frozenset()
    """Arguments that may be left out, which is then the right value."""

    @classmethod
    def equal_to(cls, call: ToolCall) -> "ExpectedCall":
        """Expect a call with just these arguments."""
        return cls(name=call.name, accepts={key: partial(same_value, value) for key, value in call.arguments.items()})


class CallMatch(NamedTuple):
    """How far calls agree with the expected ones."""

    format: float
    """1 or 0."""
    name: float
    """In [0, 1]."""
    keys: float
    """In [0, number of expected calls]."""
    values: float
    """In [0, number of expected arguments]."""
    correctness: float
    """S / S_max, in [0, 1]: 1 only where the calls are the expected ones."""

    def score(self, format_weight: float = FORMAT_WEIGHT) -> float:
        """Return w format + (1 - w) correctness."""
        return self.correctness + format_weight * (self.format - self.correctness)


def match_calls(actual: Sequence[ToolCall], expected: Sequence[ExpectedCall], *, num_malformed: int = 0) -> CallMatch:
    """Compare the calls that were made with the expected ones, in the order that suits them best.

    Args:
        actual: calls that could be read.
        expected: calls, none where the right message calls no tool.
        num_malformed: calls that could not be read.
    """
    actual_names, names = Counter(call.name for call in actual), Counter(call.name for call in expected)
    either = (actual_names | names).total()
    name = (actual_names & names).total() / either if either else 1.0
    keys = values = 0.0
    groups: dict[str, tuple[list[ToolCall], list[ExpectedCall]]] = defaultdict(lambda: ([], []))
    for call in actual:
        groups[call.name][0].append(call)
    for item in expected:
        groups[item.name][1].append(item)
    for calls, items in groups.values():
        table = [[_compare(call, item) for call in calls] for item in items]
        for row, column in _best_pairs([[sum(pair) for pair in row] for row in table]):
            keys, values = keys + table[row][column][0], values + table[row][column][1]
    most = 1 + sum(1 + len(item.accepts) for item in expected)
    is_formed = num_malformed == 0 and bool(actual) == bool(expected)
    return CallMatch(float(is_formed), name, keys, values, (name + keys + values) / most)


def _compare(call: ToolCall, item: ExpectedCall) -> tuple[float, int]:
    """Return the overlap of the arguments' names, and how many values are right."""
    names = call.arguments.keys() | (item.optional & item.accepts.keys())
    either = names | item.accepts.keys()
    values = sum(
        accepts(call.arguments[key]) if key in call.arguments else key in item.optional
        for key, accepts in item.accepts.items()
    )
    return len(names & item.accepts.keys()) / len(either) if either else 1.0, values


def _best_pairs(gains: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of highest total gain, each row and each column at most once, as many as fit."""
    if not gains or not gains[0]:
        return []
    if len(gains) == len(gains[0]) == 1:  # nearly always
        return [(0, 0)]
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # heavy; SciPy has no stubs

    rows, columns = linear_sum_assignment(gains, maximize=True)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def same_value(expected: JsonValue, value: JsonValue) -> bool:
    """Tell whether two JSON values are equal; 1 is 1.0, and no truth value is a number."""
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        return expected.keys() == value.keys() and all(same_value(expected[key], value[key]) for key in expected)
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    return isinstance(expected, bool) == isinstance(value, bool) and expected == value


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallMatch:
    """How far the calls of the answer are the expected ones, by name, arguments and values."""

    key: str = "answer"
    """Payload field: a list of `{"name": ..., "arguments": {...}}`, empty where no call is right."""
    format_weight: float = FORMAT_WEIGHT

    def __post_init__(self) -> None:
        where, do = "ToolCallMatch", "pass e.g. 0"
        fits = 0.0 <= self.format_weight <= 1.0
        InvalidInput.unless(fits, "format_weight", "lie in [0, 1]", self.format_weight, where=where, do=do)

    def __call__(self, answer: str, task: Task, tool_calls: Sequence[ToolCall] = ()) -> Verdict:
        """Score the calls in the answer, after those that were made before it.

        Raises: InvalidInput: the payload field holds no list of calls.
        """
        expected = [ExpectedCall.equal_to(call) for call in _calls_of(task, self.key)]
        action = answer if isinstance(answer, Action) else parse_action(answer)
        match = match_calls((*tool_calls, *action.tool_calls), expected, num_malformed=len(action.malformed))
        reason = (
            f"format {match.format:g}, names {match.name:.3g}, argument names {match.keys:.3g} of {len(expected)}, "
            f"values {match.values:g} of {sum(len(item.accepts) for item in expected)}"
        )
        return Verdict(score=match.score(self.format_weight), reason=reason)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: the payload field holds no list of calls."""
        _calls_of(task, self.key)


def _calls_of(task: Task, field: str) -> list[ToolCall]:
    value = key_of(task, field)
    items = value if isinstance(value, list) else [None]
    calls = []
    for item in items:
        name, arguments = (item.get("name"), item.get("arguments", {})) if isinstance(item, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise bad_key(task, field, 'be a list of {"name": ..., "arguments": {...}}', value)
        calls.append(ToolCall(name=name, arguments=arguments))
    return calls
