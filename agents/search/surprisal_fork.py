"""`surprisal_fork`: branch where the policy was least sure.

`where: token` (TreeRL's EPTree; source 2506.11902): each of L rounds takes the N tokens of highest surprisal
-log pi(token) among all that were sampled in the tree, and samples T continuations from the text before each. The first
token of a branch is not taken, and no token twice. Leaves of a tree: 1 + N T L.

`where: after_tool` (ARPO; source 2507.19849): a turn that follows tool calls is branched at its start with probability
clip(p + w (H - H_0), 0, 1), where H is the surprisal of its first tokens, summed and divided by the log of the size of
the vocabulary, and H_0 that of the episode's first turn. What no such turn takes begins anew at the root.

Branching that depends on what was sampled makes leaf averages biased; `docs/search.md` says by how much it matters.
"""

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import Field

from envgym.agents.protocols import Generation
from envgym.agents.search.branches import Branch, Place, Played
from envgym.agents.search.expanding import Expanding
from envgym.agents.search.growth import Growth
from envgym.seeds import generator


class Where(StrEnum):
    """Where branches begin."""

    TOKEN = "token"  # a token of text
    AFTER_TOOL = "after_tool"


class Spot(NamedTuple):
    """A place to branch at: behind the first `at` tokens of a turn that was played from `start`."""

    start: Place
    played: Played
    at: int
    surprisal: float


class SurprisalFork(Expanding):
    """Branch at uncertain tokens, or at uncertain turns after tool calls."""

    name: ClassVar[str] = "surprisal_fork"
    where: Where = Where.TOKEN
    """`token`: inside turns; `after_tool`: at turns that follow tool calls."""
    branches: int = Field(default=2, ge=1)
    """T: continuations of each spot."""
    probability: float = Field(default=0.5, ge=0, le=1)
    """p of `after_tool`."""
    weight: float = 0.2
    """w of `after_tool`."""
    first_tokens: int = Field(default=20, ge=1)
    """Tokens that H is measured on."""
    vocabulary: int = Field(default=32_000, ge=2)
    """Size of the vocabulary that H is measured by."""

    @property
    def branches_each(self) -> int:
        """T."""
        return self.branches

    def decide(self, growth: Growth, count: int, number: int) -> list[Branch]:
        """Begin T branches at each of the best `count` spots, and at the root for those that there are not."""
        assert growth.root is not None, "the tree has begun"
        spots = self._tokens(growth) if self.where is Where.TOKEN else self._turns(growth)
        found: list[Branch] = []
        for spot in spots[:count]:
            prefix = spot.played if spot.at else None
            found += [growth.branch(spot.start, prefix=prefix, at=spot.at) for _ in range(self.branches)]
        missing = (count - min(len(spots), count)) * self.branches
        return found + [growth.branch(growth.root) for _ in range(missing)]

    def _tokens(self, growth: Growth) -> list[Spot]:
        """Return the spots inside turns that were not taken yet, the least sure first."""
        taken = {(id(branch.prefix), branch.at) for branch in growth.branches if branch.prefix is not None}
        again = {id(branch.start) for branch in growth.branches}
        spots = [
            Spot(start, played, at, surprisal)
            for start, played, is_first in turns_of(growth)
            for at, surprisal in enumerate(surprisals(played.generation))
            if at >= played.shared + is_first and ((id(played), at) not in taken if at else id(start) not in again)
        ]
        return sorted(spots, key=lambda spot: -spot.surprisal)

    def _turns(self, growth: Growth) -> list[Spot]:
        """Return the turns after tool calls that are to be branched and were not yet, in order."""
        again = {id(branch.start) for branch in growth.branches}
        spots: list[Spot] = []
        for branch in growth.branches:
            start = branch.start
            for number, played in enumerate(branch.turns):
                outcome = played.start.link.outcome
                if number and outcome is not None and outcome.action.tool_calls and id(start) not in again:
                    rise = self._entropy(played) - self._entropy(first_turn(growth, branch))
                    draw = generator(growth.job.sampling_seed, "after tool", branch.number, number).random()
                    if draw < min(max(self.probability + self.weight * rise, 0.0), 1.0):
                        spots.append(Spot(start, played, 0, rise))
                start = played.end or start
        return spots

    def _entropy(self, played: Played) -> float:
        """Return the summed surprisal of a turn's first tokens, in logs of the size of the vocabulary."""
        return math.fsum(surprisals(played.generation)[: self.first_tokens]) / math.log(self.vocabulary)


def surprisals(generation: Generation | None) -> tuple[float, ...]:
    """Return -log pi of each sampled token, nats, at temperature 1 where the engine gives it."""
    if generation is None:
        return ()
    logprobs = generation.behavior_logprobs if generation.raw_logprobs is None else generation.raw_logprobs
    return tuple(-value for value in logprobs)


def turns_of(growth: Growth) -> Iterator[tuple[Place, Played, bool]]:
    """Yield (where it began, turn, whether it is its branch's first) of all that was played, in order."""
    for branch in growth.branches:
        start = branch.start
        for number, played in enumerate(branch.turns):
            if start.snapshot is not None:
                yield start, played, number == 0
            start = played.end or start


def first_turn(growth: Growth, branch: Branch) -> Played:
    """Return the first turn of the episode that `branch` belongs to."""
    maker = {id(played.end): other for other in growth.branches for played in other.turns if played.end is not None}
    while id(branch.start) in maker:
        branch = maker[id(branch.start)]
    return branch.turns[0]
