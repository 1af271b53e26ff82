"""Branches at the turns that the policy was least sure of: which they are, and how repetition counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.search import TurnUncertainty
from envgym.core.tree import Tree
from tests.agents.search.growing import Babbler, ended, grow
from tests.support.generations import generated
from tests.support.parrots import END, Parrot, said

SURPRISAL = {0: 0.5, 1: 2.0, 2: 0.1}
"""Turn -> nats of each of its tokens."""


def speaks(request: GenerateRequest) -> Generation:
    """Say `a` and the end; how surely depends on the turn."""
    turn = (request.token_ids.count(END) - 1) // 2  # each turn before is ended, and answered
    return generated(said("a"), -float(SURPRISAL[turn]))


def one_tree(**fields: object) -> Tree:
    strategy = TurnUncertainty.model_validate({"nodes": 1, **fields})
    size = 1 + strategy.nodes * (strategy.rounds or 0)
    (tree,) = grow(strategy, ScriptedPolicy(speaks), make_env=lambda: Parrot(max_turns=3), group_size=size).trees
    return tree


@pytest.mark.parametrize(
    "nodes, rounds, penalty, children",
    [
        # the second turn is the least sure: 2.0, against 0.5 at the root and 0.1 before the last turn
        (1, 1, 0.1, [1, 2]),
        # it is so again: 2.0 - 0.1
        (1, 2, 0.1, [1, 3]),
        (2, 1, 0.1, [1, 3]),
        # but not where its branch takes off more than what it is ahead by: 2.0 - 1.6 < 0.5
        (1, 2, 1.6, [2, 2]),
        (2, 1, 1.6, [2, 2]),
    ],
)
def test_least_sure_turns_branch_less_the_penalty(nodes: int, rounds: int, penalty: float, children: list[int]) -> None:
    tree = one_tree(nodes=nodes, rounds=rounds, penalty=penalty)
    first = tree.children[0][0]
    assert [len(tree.children[0]), len(tree.children[first])] == children
    assert len(ended(tree)) == 1 + nodes * rounds


@settings(max_examples=12)
@given(nodes=st.integers(1, 3), rounds=st.integers(1, 3), pace=st.integers(0, 3), seed=st.integers(0, 99))
def test_tree_has_the_leaves_of_its_shape_whoever_is_faster(nodes: int, rounds: int, pace: int, seed: int) -> None:
    strategy = TurnUncertainty(trees=1, nodes=nodes, rounds=rounds)
    size = 1 + nodes * rounds
    calm = grow(strategy, Babbler(), group_size=size, seed=seed)
    assert grow(strategy, Babbler(pace=pace), group_size=size, seed=seed) == calm
    assert len(ended(calm.trees[0])) == size
