"""Trees with other rewards, which every shaping returns."""

from collections.abc import Mapping
from dataclasses import replace

from envgym.core.messages import Action, Observation
from envgym.core.tree import Node, Tree
from envgym.core.turns import ZERO, Reward, Scored, TurnOutcome


def with_rewards(tree: Tree, rewards: Mapping[int, Reward]) -> Tree:
    """Return the tree with other rewards at some nodes.

    A leaf that was cut before the env replied ends its turn here, with an empty observation, so that it has a reward.
    """
    nodes = [_with_reward(node, rewards[index]) if index in rewards else node for index, node in enumerate(tree.nodes)]
    return replace(tree, nodes=tuple(nodes))


def _with_reward(node: Node, reward: Reward) -> Node:
    outcome = node.outcome or TurnOutcome(action=Action(), observation=Observation())
    return replace(node, edge=replace(node.edge, ends_turn=True), outcome=replace(outcome, reward=reward))


def with_final_rewards(tree: Tree, rewards: Mapping[int, Scored]) -> Tree:
    """Return the tree whose episodes are paid at their leaves alone; invalid rewards stay."""
    scored = [
        index for index, node in enumerate(tree.nodes) if node.outcome and isinstance(node.outcome.reward, Scored)
    ]
    return with_rewards(tree, {**dict.fromkeys(scored, ZERO), **rewards})
