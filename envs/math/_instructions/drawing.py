"""Draw constraints that agree with each other: a text that meets them is written before they become a task."""

from collections.abc import Sequence

import numpy as np

from envgym.envs.math._instructions.constraint import Constraint, DrawContext
from envgym.envs.math._instructions.kinds import ALL_KINDS, BASE, HELD_OUT_PAIRS, KINDS, are_compatible
from envgym.envs.math._instructions.outline import Outline
from envgym.envs.math._instructions.writer import DATA, OutlineTooNarrow, write_text
from envgym.envs.math._instructions.written import WrittenText

MAX_TRIES = 1000


def draw_constraints(
    rng: np.random.Generator, kinds: Sequence[str], num: int, *, may_have_held_out: bool
) -> tuple[Constraint, ...]:
    """Draw `num` constraints of different kinds, or as many as go together, and those of every task."""
    for _ in range(MAX_TRIES):
        drawn_kinds = _draw_kinds(rng, kinds, num, may_have_held_out)
        try:
            return _draw_parameters(rng, drawn_kinds)
        except OutlineTooNarrow:
            continue
    raise AssertionError(f"kinds {kinds} must have constraints that a text meets")


def has_held_out_pair(kinds: Sequence[str]) -> bool:
    """Tell whether two of these kinds are never together in the train split."""
    return any(pair <= set(kinds) for pair in HELD_OUT_PAIRS)


def outline_of(constraints: Sequence[Constraint]) -> Outline:
    outline = Outline(topic=next(item.texts[0] for item in constraints if item.kind == "topic"))
    for constraint in constraints:
        outline = ALL_KINDS[constraint.kind].plan(outline, constraint)
    return outline


def held(written: WrittenText, constraints: Sequence[Constraint]) -> list[bool]:
    return [ALL_KINDS[item.kind].holds(written, item) for item in constraints]


def _draw_kinds(rng: np.random.Generator, kinds: Sequence[str], num: int, may_have_held_out: bool) -> list[str]:
    """Draw kinds one by one; a task that may have a held-out pair begins with one every other time."""
    drawn_kinds: list[str] = []
    pairs = [sorted(pair) for pair in HELD_OUT_PAIRS if pair <= set(kinds)] if may_have_held_out and num > 1 else []
    if pairs and rng.random() < 0.5:
        drawn_kinds += pairs[rng.integers(len(pairs))]
    for at in rng.permutation(len(kinds)):
        if len(drawn_kinds) == num:
            break
        kind = kinds[at]
        if kind in drawn_kinds or not all(are_compatible(kind, other) for other in drawn_kinds):
            continue
        if may_have_held_out or not has_held_out_pair([*drawn_kinds, kind]):
            drawn_kinds.append(kind)
    return sorted(drawn_kinds, key=list(KINDS).index)


def _draw_parameters(rng: np.random.Generator, kinds: Sequence[str]) -> tuple[Constraint, ...]:
    field = DATA["fields"][rng.integers(len(DATA["fields"]))]
    topic = field["topics"][rng.integers(len(field["topics"]))]
    outline = Outline(topic=topic)
    constraints: list[Constraint] = []
    for kind in (*kinds, *BASE):
        related = [word for word in field["related"] if word not in outline.reserved]
        context = DrawContext(rng=rng, topic=topic, related=related, outline=outline, measure=_measure)
        constraint = Constraint(kind, *ALL_KINDS[kind].draw(context))
        constraints.append(constraint)
        outline = ALL_KINDS[kind].plan(outline, constraint)
    if not all(held(_measure(outline), constraints)):
        raise OutlineTooNarrow
    return tuple(constraints)


def _measure(outline: Outline) -> WrittenText:
    return WrittenText(write_text(outline))
