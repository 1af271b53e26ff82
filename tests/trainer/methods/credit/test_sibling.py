"""Sibling baseline: hand cases, reductions and laws."""

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.sibling import Sibling
from tests.support import example_trees as cases
from tests.support.credit_trees import BRANCH, NodeSpec, branched, chain, chains, group_of, per_node

NODES = st.lists(st.tuples(st.integers(0, 20), st.none() | st.floats(-5, 5)), min_size=1, max_size=12)
TURNS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5)


def test_children_of_one_node_share_a_baseline() -> None:
    group = group_of(branched("A", (0, 0.5), (1, 1.0), (1, 0.0)), chain("B", [0.25]))
    # leaves weigh 1/4, 1/4, 1/2, times 3: .75, .75, 1.5; Q(A's first) = .5 + .5 = 1
    # first turns: 1 - .25 = .75 and .25 - 1 = -.75; below the fork: 1 - 0 and 0 - 1
    assert per_node(Sibling()(group)) == [[0.75 * 0.75, 0.75], [0.75 * 0.75, -0.75], [1.5 * -0.75]]


def test_node_without_siblings_is_compared_with_those_of_the_branch_above() -> None:
    # below a fork two chains: A pays 1 then 4, B pays 2 and ends
    group = group_of(branched("t", (0, 0.0), (1, 1.0), (2, 4.0), (1, 2.0)))
    # turn 1: 5 - 2 and 2 - 5; turn 2: 4 against B, which has ended, at 0; the first turn has nothing to compare with
    assert per_node(Sibling()(group)) == [[0.0, 3.0, 4.0], [0.0, -3.0]]


def test_fork_inside_a_turn_is_a_branch() -> None:
    group = group_of(branched("t", (0, BRANCH), (1, 1.0), (1, 0.0)), chain("B", [0.0]))
    found = per_node(Sibling()(group))
    assert found[0] == pytest.approx([0.75 * 0.5, 0.75 * 1.0])
    assert found[2] == pytest.approx([1.5 * -0.5])


def test_invalid_branch_is_no_sibling() -> None:
    assert per_node(Sibling()(group_of(cases.invalid_branch()))) == [[1.0], [-1.0]]


def test_advantages_under_one_node_sum_to_zero() -> None:
    group = group_of(branched("t", (0, 0.0), (1, 1.0), (1, 0.0), (1, 5.0)))
    assert sum(row[1] for row in per_node(Sibling()(group))) == pytest.approx(0.0)


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=4))
def test_one_tree_branched_at_the_prompt_is_a_group_of_chains(rewards: list[float]) -> None:
    star = group_of(branched("star", *((0, reward) for reward in rewards)))
    assert per_node(Sibling()(star)) == per_node(Sibling()(chains(*([reward] for reward in rewards))))


@settings(max_examples=60)
@given(NODES, NODES)
def test_every_node_gets_what_the_definition_says(first: list[NodeSpec], second: list[NodeSpec]) -> None:
    forests = [_grown(first), _grown(second)]
    trees = [branched(name, *nodes) for name, nodes in zip("AB", forests, strict=True)]
    assert per_node(Sibling()(group_of(*trees))) == [pytest.approx(row, abs=1e-9) for row in _by_definition(forests)]


def _grown(drawn: list[NodeSpec]) -> list[NodeSpec]:
    """Let every node lie below the prompt or an earlier node."""
    return [(spec[0] % number, spec[1]) for number, spec in enumerate(drawn, start=1)]


def _by_definition(forests: list[list[NodeSpec]]) -> list[list[float]]:
    """Return the advantages along every leaf's path as the method's docstring has them, by plain recursion."""
    # All trees are one below the prompt, node 0: the second tree's nodes are numbered on.
    specs: list[tuple[int, float | None]] = [(0, 0.0)]
    for nodes in forests:
        offset = len(specs) - 1
        specs += [(spec[0] + offset if spec[0] else 0, spec[1]) for spec in nodes]
    children = [[n for n, (parent, _) in enumerate(specs) if n and parent == above] for above in range(len(specs))]
    turns = [0] * len(specs)
    for node, (parent, _) in enumerate(specs[1:], start=1):
        turns[node] = turns[parent] + (parent > 0 and specs[parent][1] is not None)

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values) if values else 0.0

    def paid_from(turn: int, node: int) -> float:
        own = specs[node][1] if turns[node] >= turn else 0.0
        return (own or 0.0) + mean([paid_from(turn, child) for child in children[node]])

    def advantage(node: int) -> float:
        branch = node
        while branch and len(children[specs[branch][0]]) == 1:
            branch = specs[branch][0]
        others = [paid_from(turns[node], other) for other in children[specs[branch][0]] if other != branch]
        return paid_from(turns[node], node) - mean(others) if branch else 0.0

    def leaves_below(node: int) -> list[int]:
        return [leaf for child in children[node] for leaf in leaves_below(child)] or [node]

    leaves = leaves_below(0)
    found: list[list[float]] = []
    for leaf in leaves:
        path, weight = [leaf], float(len(leaves))
        while parent := specs[path[0]][0]:
            path.insert(0, parent)
        for node in (0, *path[:-1]):
            weight /= len(children[node])
        found.append([weight * advantage(node) for node in path])
    return found
