"""Add a named reward to the end of episodes."""

from collections.abc import Mapping
from dataclasses import replace

from envgym.core.messages import Action, Observation
from envgym.core.tree import Node, Tree
from envgym.core.turns import Scored, TurnOutcome


def with_extra(tree: Tree, name: str, extras: Mapping[int, float]) -> Tree:
    """Return the tree with `extras[leaf]` added to the rewards of its leaves, as the component `name`.

    A leaf that was cut before the env replied ends its turn here, with an empty observation, so that it has a reward.
    """
    nodes = list(tree.nodes)
    for leaf, extra in extras.items():
        nodes[leaf] = _paid(nodes[leaf], name, extra)
    return replace(tree, nodes=tuple(nodes))


def _paid(node: Node, name: str, extra: float) -> Node:
    """Return the node with `extra` more reward; an invalid reward stays what it is."""
    outcome = node.outcome or TurnOutcome(action=Action(), observation=Observation())
    reward = outcome.reward
    if not isinstance(reward, Scored):
        return node
    more = Scored(value=reward.value + extra, components={**reward.components, name: extra})
    return replace(node, edge=replace(node.edge, ends_turn=True), outcome=replace(outcome, reward=more))
