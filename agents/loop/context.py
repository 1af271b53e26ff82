"""What an agent does when its context budget runs out: stop, or go on in a shorter context that is rendered anew.

A strategy proposes shortened conversations; `shorten` renders them and chooses. It knows messages and lengths,
nothing of tokens. The record of what happened is the rewrite that the loop puts on the next edge.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple, Protocol

from envgym.agents.protocols import Rendering
from envgym.agents.tables import KINDS
from envgym.config.plugins import PluginKind
from envgym.core.messages import Message, Role
from envgym.core.tree import Rewrite


class Proposal(NamedTuple):
    """Shortened conversations and what to call the rewrite."""

    rewrite: Rewrite
    conversations: Sequence[tuple[Message, ...]]
    """At least one; the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """The conversation to go on with, and its rendering as a whole new context."""

    messages: tuple[Message, ...]
    rendering: Rendering
    rewrite: Rewrite


class ContextStrategy(Protocol):
    """Proposes shorter conversations."""

    def __call__(self, messages: Sequence[Message]) -> Proposal | None:
        """Return the proposal; None: there is nothing to leave out."""
        ...


CONTEXT_STRATEGY: Final[PluginKind[ContextStrategy]] = KINDS["context_strategy"]


def stop(messages: Sequence[Message]) -> None:
    """Leave nothing out: the episode ends as TRUNCATED_TOKENS."""
    del messages


def drop_oldest_turns(messages: Sequence[Message]) -> Proposal | None:
    """Leave out whole turns (an assistant message and its answers), oldest first; keep the task and the last turn."""
    starts = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if len(starts) < 2:
        return None
    head = tuple(messages[: starts[0]])
    return Proposal(Rewrite.TURNS_DROPPED, [(*head, *messages[start:]) for start in starts[1:]])


def drop_thinking(messages: Sequence[Message]) -> Proposal | None:
    """Leave out the reasoning of all turns so far, where the model's format keeps it apart."""
    if all(message.thinking is None for message in messages):
        return None
    return Proposal(Rewrite.THINKING_DROPPED, [tuple(replace(message, thinking=None) for message in messages)])


def shorten(
    strategy: ContextStrategy,
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], Rendering],
    max_tokens: int,
) -> Shortened | None:
    """Return the longest proposal that renders to at most half of `max_tokens`, else the shortest if it fits at all.

    Half, because every rewrite starts another row to train and another prefix to compute: they should be rare.
    Lengths are taken to fall with every message left out, so a proposal is found by bisection.
    """
    proposal = strategy(messages)
    if proposal is None:
        return None
    rewrite, conversations = proposal
    rendered = cache(lambda index: render(conversations[index]))

    def num_tokens(index: int) -> int:
        return sum(len(segment) for segment in rendered(index).segments)

    places = range(len(conversations))
    index = bisect_left(places, True, key=lambda place: num_tokens(place) <= max_tokens // 2)
    index = min(index, len(conversations) - 1)
    if num_tokens(index) > max_tokens:
        return None
    return Shortened(messages=conversations[index], rendering=rendered(index), rewrite=rewrite)
