"""`turn_uncertainty`: branch at the turns of highest uncertainty. Source: 2601.04767 (AT2PO).

Each of L rounds takes N times the state with the highest u - penalty b: u is the mean surprisal of the tokens that were
sampled there (-log pi, over all turns from the state), b how many branches it was given beyond the first
turn there, those of this round included. Leaves of a tree: 1 + N L.

Branching that depends on what was sampled makes leaf averages biased; `docs/search.md` says by how much it matters.
"""

from statistics import fmean
from typing import ClassVar

from pydantic import Field

from envgym.agents.search.branches import Branch, SearchState
from envgym.agents.search.engine import SearchTree
from envgym.agents.search.rounds import RoundStrategy
from envgym.agents.search.surprisal_fork import branchable_turns, surprisals


class TurnUncertainty(RoundStrategy):
    """Continue from the `nodes` turns of highest uncertainty, `rounds` times; branched states rank lower."""

    name: ClassVar[str] = "turn_uncertainty"
    penalty: float = Field(default=0.1, ge=0)
    """What each branch of a state takes off its score, nats a token."""

    def decide(self, tree: SearchTree, count: int, number: int) -> list[Branch]:
        """Begin one branch at the best state, `count` times over."""
        surprisal = mean_surprisals(tree)

        def score(state: SearchState) -> float:
            return surprisal.get(state, 0.0) - self.penalty * (tree.num_branches(state) - 1)

        states = tree.states
        return [tree.add_branch(max(states, key=score)) for _ in range(count)]


def mean_surprisals(tree: SearchTree) -> dict[SearchState, float]:
    """Return the mean surprisal of what was sampled at each state, nats a token."""
    sampled: dict[SearchState, list[float]] = {}
    for turn, _ in branchable_turns(tree):
        sampled.setdefault(turn.start, []).extend(surprisals(turn.generation))
    return {state: fmean(values) for state, values in sampled.items() if values}
