"""Word problems: a plan of events with a fixed number of operations, told with one of many themes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envgym.envs.data_files import read_toml
from envgym.envs.math._expressions import Expression, Operation, draw_divisor, draw_factor, draw_number

_DATA = read_toml("math/data/stories.toml")
NAMES: tuple[str, ...] = tuple(_DATA["names"])
THEMES: tuple[Mapping[str, str], ...] = tuple(_DATA["themes"])
"""Sentences by kind; each theme has one for every kind."""
_OPENINGS = {"start": 0, "packs": 1}
_EVENTS = {"gain": 1, "lose": 1, "gain_packs": 2, "lose_packs": 2}
_QUESTIONS = {"ask": 0, "times": 1, "share": 1}
"""What each kind of sentence adds to the number of operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A word problem and the arithmetic that it asks for."""

    text: str
    expression: Expression
    """Its numbers stand in the order of the text wherever the sentence allows."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """How many there are after some sentences."""

    expression: Expression
    value: int


def draw_story(rng: np.random.Generator, operations: int, digits: int) -> Story:
    """Draw a story of `operations` >= 1 operations in which every count is a positive integer."""
    theme = THEMES[rng.integers(len(THEMES))]
    name = NAMES[rng.integers(len(NAMES))]
    while True:
        plan = _draw_plan(rng, operations)
        tally, sentences = _Tally(0, 0), []
        for kind in plan:
            factor, amount = draw_factor(rng), draw_number(rng, digits)
            if kind == "share":
                factor = draw_divisor(rng, tally.value)
            tally = _after(tally, kind, factor, amount)
            if tally.value <= 0:
                break
            sentences.append(theme[kind].format(name=name, n=amount, k=factor))
        else:
            return Story(text=" ".join(sentences), expression=tally.expression)


def _draw_plan(rng: np.random.Generator, operations: int) -> list[str]:
    """Draw the kinds of the sentences: an opening, events, a question; together `operations` operations."""
    while True:
        opening = _choose(rng, _OPENINGS, operations)
        question = _choose(rng, _QUESTIONS, operations - _OPENINGS[opening])
        left = operations - _OPENINGS[opening] - _QUESTIONS[question]
        events: list[str] = []
        while left:
            events.append(_choose(rng, _EVENTS, left))
            left -= _EVENTS[events[-1]]
        if len(events) <= operations // 2 + 1:
            return [opening, *events, question]


def _choose(rng: np.random.Generator, table: dict[str, int], limit: int) -> str:
    kinds = [kind for kind, operations in table.items() if operations <= limit]
    return kinds[rng.integers(len(kinds))]


def _after(before: _Tally, kind: str, factor: int, amount: int) -> _Tally:
    """Return the tally after a sentence; its value is 0 or less where the sentence cannot be told."""
    match kind:
        case "start":
            return _Tally(amount, amount)
        case "packs":
            return _Tally(Operation("*", factor, amount), factor * amount)
        case "ask":
            return before
        case "times":
            return _Tally(Operation("*", before.expression, factor), before.value * factor)
        case "share":
            return _Tally(Operation("/", before.expression, factor), before.value // factor if factor else 0)
    is_many = kind.endswith("packs")
    change: Expression = Operation("*", factor, amount) if is_many else amount
    size = factor * amount if is_many else amount
    if kind.startswith("gain"):
        return _Tally(Operation("+", before.expression, change), before.value + size)
    return _Tally(Operation("-", before.expression, change), before.value - size)
