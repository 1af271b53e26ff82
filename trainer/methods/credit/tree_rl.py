"""TreeRL: what a step adds to the value of the tree, besides where it stands."""

import statistics
from itertools import pairwise

from pydantic import Field

from envgym.core.trajectory import Group
from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards, left_out
from envgym.trainer.methods.credit.paths import ROOT, Branches, Place
from envgym.trainer.methods.protocols import TrajectoryCredit


class TreeRl(Settings):
    """Add global and local advantage: A(n) = (G(n) + L(n)) / |leaves(n)|^e, G = V(n) - V(root), L = V(n) - V(parent).

    V(n) is the mean of r_i - mean_{j != i} r_j over the leaves below n; V(root) = 0. Nodes without a branch between
    them are one step: all of them get the L of the first. The exponent e is `shared`; rows train `per_path`, so a
    node with k leaves is trained k times: e = 1 makes that once, 0 leaves it, 1/2 is the paper's.

    Source: 2506.11902. The formula is the paper's; the authors' code divides V before the difference is taken, and
    copies L from the step before wherever |L| < 1e-8, also at a branch.
    """

    shared: float = Field(default=0.5, ge=0, le=1)
    """The exponent e: how much less a node counts the more leaves hold it."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode."""
        branches = Branches(group=group)
        of_leaf = left_out(episode_rewards(group))
        values = {
            place: statistics.fmean(of_leaf[number] for number in holders)
            for place, holders in branches.holders.items()
        }
        values[ROOT] = 0.0
        steps = {place: step for path in branches.paths for place, step in self._steps(path, values, branches).items()}
        scale = {place: len(holders) ** -self.shared for place, holders in branches.holders.items()}
        return tuple(
            TrajectoryCredit(
                trajectory=episode,
                advantages=(0.0, *((values[place] + steps[place]) * scale[place] for place in path[1:])),
            )
            for episode, path in zip(group.valid, branches.paths, strict=True)
        )

    @staticmethod
    def _steps(path: tuple[Place, ...], values: dict[Place, float], branches: Branches) -> dict[Place, float]:
        """Return L of every place of a path, the same along an unbranched run."""
        steps: dict[Place, float] = {}
        for above, place in pairwise(path):
            goes_on = above != ROOT and len(branches.children[above]) == 1
            steps[place] = steps[above] if goes_on else values[place] - values[above]
        return steps
