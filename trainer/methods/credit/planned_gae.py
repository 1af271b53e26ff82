"""Planned trees with a critic: every node once, with the generalised advantage estimate of its turn."""

from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.gae import GaeTurn
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.paths import GroupTree, NodeKey
from envgym.trainer.methods.credit.planned import NodeWeights, episodes_per_group
from envgym.trainer.methods.protocols import CreditContext, TrajectoryCredit


class PlannedGae(NodeWeights, GaeTurn):
    """Every node once: A(n) = w(n) times the mean of `gae_turn`'s advantages over the episodes below it.

    w and the scale of all advantages are those of `planned`; an episode counts in the mean as it weighs. With λ = 1 the
    advantage is w (Q - beta_t V), and the gradient is unbiased for any critic where that of `planned` is. The critic
    learns as in `gae_turn`. `whiten` would add to the bias what it adds there. Source: own.
    """

    def assign(self, groups: Sequence[Group], context: CreditContext) -> list[TrajectoryCredit]:
        """Return the credit of every valid episode, with the value targets.

        Raises: InvalidInput: the values do not fit the episodes.
        """
        credits = iter(super().assign(groups, context))
        scale = episodes_per_group(groups)
        node_credits: list[TrajectoryCredit] = []
        for group in groups:
            of_group = [next(credits) for _ in group.valid]
            node_credits += _credit_nodes(group, of_group, scale=scale)
        return node_credits


def _credit_nodes(group: Group, credits: Sequence[TrajectoryCredit], *, scale: float) -> list[TrajectoryCredit]:
    """Replace every advantage by the weighted mean over the episodes that hold its node, times the node's weight."""
    group_tree = GroupTree(group=group)
    weights = NodeReturns(group_tree=group_tree).weights
    sums: dict[NodeKey, tuple[float, ...]] = {}
    for credit, path in zip(credits, group_tree.paths, strict=True):
        for node, entry in zip(path[1:], credit.advantages[1:], strict=True):
            assert isinstance(entry, tuple), "a critic's credit has an entry per token"
            before = sums.get(node, (0.0,) * len(entry))
            sums[node] = tuple(total + weights[path[-1]] * value for total, value in zip(before, entry, strict=True))
    return [
        TrajectoryCredit(
            trajectory=credit.trajectory,
            advantages=(0.0, *(tuple(scale * value for value in sums[node]) for node in path[1:])),
            targets=credit.targets,
        )
        for credit, path in zip(credits, group_tree.paths, strict=True)
    ]
