"""Preference pairs from siblings: whole episodes of a group, or branches of one node."""

from dataclasses import dataclass

from envgym.core.pairs import Pair, Which, preference_pairs, sibling_pairs
from envgym.core.trajectory import Group, Trajectory
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.credit.paths import GroupTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingBranch:
    """What is compared of an episode: its path from a node on."""

    episode: Trajectory
    """The first episode that goes through the node."""
    depth: int
    """Place of the node in `episode.path`; what comes before it is the context that the siblings share."""


def episode_pairs(group: Group, *, which: Which = "all", min_margin: float = 0.0) -> list[Pair[Trajectory]]:
    """Pair the valid episodes of a group by their rewards."""
    pairs = preference_pairs(dict(enumerate(episode_rewards(group))), which=which, min_margin=min_margin)
    return [Pair(group.valid[chosen], group.valid[rejected], margin) for chosen, rejected, margin in pairs]


def branch_pairs(group: Group, *, which: Which = "all", min_margin: float = 0.0) -> list[Pair[SiblingBranch]]:
    """Pair the branches below every node of a group by the mean reward of the valid episodes through them.

    The trees of a group share their root. Chains have no other node with several children, so their pairs are those of
    `episode_pairs`.
    """
    tree = GroupTree(group=group)
    pairs = sibling_pairs(tree.paths, episode_rewards(group), which=which, min_margin=min_margin)
    branches = {
        node: SiblingBranch(episode=group.valid[numbers[0]], depth=tree.paths[numbers[0]].index(node))
        for node, numbers in tree.episodes_through.items()
    }
    return [Pair(branches[chosen], branches[rejected], margin) for chosen, rejected, margin in pairs]
