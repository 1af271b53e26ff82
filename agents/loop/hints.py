"""Hints: what a guide adds to a task. Their tokens are `INJECTED`; the context without them is kept, too. Pure.

Other words for a task are rendered like the hints that the policy is not given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import NamedTuple

from envgym.agents.loop.agent import Agent
from envgym.core.builder import split_segments
from envgym.core.messages import Message, reworded, with_hint
from envgym.core.segments import Origin, Segment
from envgym.core.tree import PLAIN_PROMPT
from envgym.records import ResetRecord

PLAIN = PLAIN_PROMPT
"""Name in `Tree.prompts` of the first context without the hint."""


class FirstContext(NamedTuple):
    """The context of an episode's first turn."""

    messages: tuple[Message, ...]
    segments: tuple[Segment, ...]
    prompts: Mapping[str, tuple[int, ...]]
    """Name -> [T] its tokens rendered in another way."""


def first_context(agent: Agent, record: ResetRecord, hint: str | None, other_hints: Mapping[str, str]) -> FirstContext:
    """Render the first context, with `hint` where there is one, and beside it with each of `other_hints` instead.

    What a wrapper has added to the first observation is a hint, too.

    Raises: PolicyFailure: the renderer failed. InvalidInput: as `reworded`, of one of the others.
    """
    messages = opening = agent.opening(record)
    if record.plain is not None:
        messages = agent.opening(replace(record, observation=record.plain))
    plain = agent.start(messages, record.tools).segments
    others = {
        name: token_ids(agent.start(reworded(messages, other), record.tools).segments)
        for name, other in other_hints.items()
    }
    if hint is None and record.plain is None:
        return FirstContext(messages, plain, others)
    messages = opening if hint is None else with_hint(opening, hint)
    segments = mark_hint(plain, agent.start(messages, record.tools).segments)
    return FirstContext(messages, segments, {PLAIN: token_ids(plain), **others})


def mark_hint(plain: Sequence[Segment], hinted: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return a rendering with a hint, in which what the one without it lacks is `INJECTED`.

    That is what stands between the tokens that both begin with and those that both end with.
    """
    without, tokens = token_ids(plain), token_ids(hinted)
    start = _num_equal(without, tokens)
    length = len(tokens) - start - _num_equal(without[start:][::-1], tokens[start:][::-1])
    head, rest = _cut(hinted, start)
    hint, tail = _cut(rest, length)
    return (*head, *(replace(segment, origin=Origin.INJECTED) for segment in hint), *tail)


def token_ids(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the tokens of segments, in order."""
    return tuple(chain.from_iterable([segment.token_ids for segment in segments]))


def _num_equal(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _cut(segments: Sequence[Segment], at: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Cut a run of segments before token `at`, which may be the first, or none."""
    if at in (0, sum(len(segment) for segment in segments)):
        return ((), tuple(segments)) if at == 0 else (tuple(segments), ())
    return split_segments(segments, at)
