"""`surprisal_fork`: branch where the policy was most uncertain.

`where: token` (TreeRL's EPTree; source 2506.11902): each of L rounds takes the N tokens of highest surprisal
-log pi(token) among all that were sampled in the tree, and samples T continuations from the text before each. The first
token of a branch is not taken, and no token twice. Leaves of a tree: 1 + N T L.

`where: after_tool` (ARPO; source 2507.19849): a turn that follows tool calls is branched at its start with probability
clip(p + w (H - H_0), 0, 1), where H is the surprisal of its first tokens, summed and divided by the log of the size of
the vocabulary, and H_0 that of the episode's first turn. Branches that no such turn takes begin at the root.

Branching that depends on what was sampled makes leaf averages biased; `docs/search.md` says by how much it matters.
"""

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import Field

from envgym.agents.protocols import Generation
from envgym.agents.search.branches import Branch, SharedPrefix, TurnRecord
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.rounds import RoundStrategy
from envgym.seeds import generator


class Where(StrEnum):
    """Where branches begin."""

    TOKEN = "token"  # a token of text
    AFTER_TOOL = "after_tool"


class ForkPoint(NamedTuple):
    """Where to branch: after the first `num_tokens` of a finished turn."""

    turn: TurnRecord
    num_tokens: int
    surprisal: float


class SurprisalFork(RoundStrategy):
    """Branch at uncertain tokens, or at uncertain turns after tool calls."""

    name: ClassVar[str] = "surprisal_fork"
    where: Where = Where.TOKEN
    """`token`: inside turns; `after_tool`: at turns that follow tool calls."""
    branches: int = Field(default=2, ge=1)
    """T: continuations of each fork point."""
    probability: float = Field(default=0.5, ge=0, le=1)
    """p of `after_tool`."""
    weight: float = 0.2
    """w of `after_tool`."""
    first_tokens: int = Field(default=20, ge=1)
    """Tokens that H is measured on."""
    vocabulary: int = Field(default=32_000, ge=2)
    """Size of the vocabulary that H is measured by."""

    @property
    def branches_per_decision(self) -> int:
        """T."""
        return self.branches

    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin T branches at each of the best `count` fork points, and at the root for those that are missing."""
        assert tree.root is not None, "the tree has begun"
        points = self._fork_tokens(tree) if self.where is Where.TOKEN else self._fork_turns(tree)
        branches: list[Branch] = []
        for point in points[:count]:
            prefix = SharedPrefix(point.turn, point.num_tokens) if point.num_tokens else None
            branches += [tree.add_branch(point.turn.start, prefix=prefix) for _ in range(self.branches)]
        num_missing = (count - min(len(points), count)) * self.branches
        return branches + [tree.add_branch(tree.root) for _ in range(num_missing)]

    def _fork_tokens(self, tree: SearchTree) -> list[ForkPoint]:
        """Return the fork points inside turns that were not taken yet, the most uncertain first."""
        positions = {(branch.prefix.turn, branch.prefix.num_tokens) for branch in tree.branches if branch.prefix}
        branched = {branch.start for branch in tree.branches}
        points = [
            ForkPoint(turn, at, surprisal)
            for turn, is_first in branchable_turns(tree)
            for at, surprisal in enumerate(surprisals(turn.generation))
            if at >= turn.num_shared + is_first and ((turn, at) not in positions if at else turn.start not in branched)
        ]
        return sorted(points, key=lambda point: -point.surprisal)

    def _fork_turns(self, tree: SearchTree) -> list[ForkPoint]:
        """Return the turns after tool calls that are to be branched and were not yet, in order."""
        branched = {branch.start for branch in tree.branches}
        points: list[ForkPoint] = []
        for branch in tree.branches:
            for number, turn in enumerate(branch.turns):
                outcome = turn.start.node.outcome
                if number and outcome is not None and outcome.action.tool_calls and turn.start not in branched:
                    rise = self._entropy(turn) - self._entropy(first_turn(tree, branch))
                    draw = generator(tree.job.sampling_seed, "after tool", branch.number, number).random()
                    if draw < min(max(self.probability + self.weight * rise, 0.0), 1.0):
                        points.append(ForkPoint(turn, 0, rise))
        return points

    def _entropy(self, turn: TurnRecord) -> float:
        """Return the summed surprisal of a turn's first tokens, in logs of the size of the vocabulary."""
        return math.fsum(surprisals(turn.generation)[: self.first_tokens]) / math.log(self.vocabulary)


def surprisals(generation: Generation | None) -> tuple[float, ...]:
    """Return -log pi of each sampled token, nats, at temperature 1 where the engine gives it."""
    if generation is None:
        return ()
    logprobs = generation.behavior_logprobs if generation.raw_logprobs is None else generation.raw_logprobs
    return tuple(-value for value in logprobs)


def branchable_turns(tree: SearchTree) -> Iterator[tuple[TurnRecord, bool]]:
    """Yield the turns at whose start a branch can begin, in order, and whether each is its branch's first."""
    for branch in tree.branches:
        for number, turn in enumerate(branch.turns):
            if turn.start.snapshot is not None:
                yield turn, number == 0


def first_turn(tree: SearchTree, branch: Branch) -> TurnRecord:
    """Return the first turn of the episode that `branch` belongs to."""
    branch_to = {turn.end: other for other in tree.branches for turn in other.turns if turn.end is not None}
    while branch.start in branch_to:
        branch = branch_to[branch.start]
    return branch.turns[0]
