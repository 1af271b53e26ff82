"""DAPO's soft penalty for long episodes."""

from collections.abc import Mapping

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, trajectories
from envgym.core.tree import Node, Tree
from envgym.core.turns import ZERO, Reward, Scored
from envgym.trainer.methods.shaping.rewards import with_rewards

COMPONENT = "overlong"
"""The penalty's name among the components of a reward."""


class Overlong(Settings):
    """Add p(l) to an episode's reward: 0 up to M - b sampled tokens, then linear down to -1 at M, and -1 beyond.

    M = max_tokens, b = buffer. Source: 2503.14476; the tokens of all turns are counted.
    """

    max_tokens: int = Field(default=512, ge=1)
    """M: set it to the most that an episode may sample."""
    buffer: int = Field(default=128, ge=0)
    """b: tokens before M over which the penalty grows."""

    def __call__(self, group: Group) -> Group:
        """Return the group with shaped rewards; episodes without a penalty are left as they are."""
        trees = [
            with_extra(tree, COMPONENT, {e.leaf: p for e in trajectories(tree) if (p := self.penalty(e.num_sampled))})
            for tree in group.trees
        ]
        return Group(key=group.key, trees=tuple(trees))

    def penalty(self, length: int) -> float:
        """Return p(l), between -1 and 0."""
        if length > self.max_tokens:
            return -1.0
        over = length - (self.max_tokens - self.buffer)
        return -over / self.buffer if over > 0 else 0.0


def with_extra(tree: Tree, name: str, extras: Mapping[int, float]) -> Tree:
    """Return the tree with `extras[leaf]` added to the rewards of its leaves, as the component `name`."""
    return with_rewards(tree, {leaf: _paid(tree.nodes[leaf], name, extra) for leaf, extra in extras.items()})


def _paid(node: Node, name: str, extra: float) -> Reward:
    """Return the reward of a node with `extra` more; an invalid reward stays what it is."""
    reward = node.outcome.reward if node.outcome is not None else ZERO
    if not isinstance(reward, Scored):
        return reward
    return Scored(value=reward.value + extra, components={**reward.components, name: extra})
