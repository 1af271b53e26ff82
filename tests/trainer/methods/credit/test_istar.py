"""iStar's credit: published numbers, its reduction to RLOO, laws."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.trainer.methods.credit.istar import Istar
from envgym.trainer.methods.credit.outcome import Rloo
from envgym.trainer.methods.protocols import CreditContext
from tests.support.credit_trees import chains, per_node

REWARDS = [[0.1, -0.05], [0.05, 0.05], [0.0, -0.1], [0.15, 0.1]]


def annotated(outcomes: Sequence[float], rewards: Sequence[Sequence[float | None]]) -> Group:
    """Return chains whose last turns pay the outcomes, with these process rewards; None: the annotation failed."""
    group = chains(*([0.0] * (len(of) - 1) + [outcome] for outcome, of in zip(outcomes, rewards, strict=True)))
    trees = [
        replace(
            tree,
            annotations=tuple(
                Annotation(name="prm", level="turn", node=turn, value=value, error="lost" if value is None else None)
                for turn, value in enumerate(of, start=1)
            ),
        )
        for tree, of in zip(group.trees, rewards, strict=True)
    ]
    return replace(group, trees=tuple(trees))


def advantages(credit: Istar, *groups: Group) -> list[list[float]]:
    return per_node(credit.assign(groups, CreditContext()))


def test_published_vector_of_istar() -> None:
    group = annotated([1, 0, 0, 1], REWARDS)
    outcome = 0.666667
    first = [[0.0333, -0.1667], [-0.0333, -0.0333], [-0.1, -0.2333], [0.1, 0.0333]]
    every = [[0.0714, -0.1], [0.0143, 0.0143], [-0.0429, -0.1571], [0.1286, 0.0714]]
    for credit, expected in ((Istar(norm="none"), first), (Istar(norm="none", baseline="all"), every)):
        found = advantages(credit, group)
        for of_episode, steps, sign in zip(found, expected, (1, -1, -1, 1), strict=True):
            assert of_episode == pytest.approx([sign * outcome + step for step in steps], abs=6e-5)


def test_rewards_of_a_step_are_divided_by_their_largest_return() -> None:
    group, other = annotated([1, 0], [[0.1, 0.3], [0.0, 0.2]]), annotated([1, 0], [[-0.5], [0.1]])
    # returns: .4, .3, .2, .2, -.5, .1, so the scale is .5
    scaled = annotated([1, 0], [[0.2, 0.6], [0.0, 0.4]])
    assert advantages(Istar(), group, other)[:2] == [
        pytest.approx(found) for found in advantages(Istar(norm="none"), scaled)
    ]


def test_without_process_rewards_it_is_rloo() -> None:
    group = annotated([1, 0, 0.5], [[0.1], [0.4], [-0.2]])
    assert advantages(Istar(step_weight=0), group) == per_node(Rloo()(group))
    assert advantages(Istar(), annotated([1, 0], [[0.0], [0.0]])) == [[1.0], [-1.0]]


def test_an_episode_whose_annotation_failed_does_not_train_and_counts_nowhere() -> None:
    with_failure = annotated([1, 0, 1], [[0.1], [0.3], [None]])
    assert advantages(Istar(), with_failure) == advantages(Istar(), annotated([1, 0], [[0.1], [0.3]]))


def test_two_episodes_are_compared_with_each_other() -> None:
    # outcomes 1 - 0; process rewards 2/1 (.2 - .1)
    found = advantages(Istar(norm="none"), annotated([1, 0], [[0.2], [0.0]]))
    assert found == [pytest.approx([1.2]), pytest.approx([-1.2])]


def test_group_of_one_has_advantage_zero() -> None:
    assert advantages(Istar(), annotated([1], [[0.3, 0.1]])) == [[0.0, 0.0]]
    assert advantages(Istar(baseline="all"), annotated([1], [[0.3, 0.1]])) == [[0.0, 0.0]]


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=3), min_size=2, max_size=4))
def test_step_advantages_sum_to_zero_over_the_turns_of_their_baseline(rewards: list[list[float]]) -> None:
    group = annotated([0.0] * len(rewards), rewards)
    assert sum(of[0] for of in advantages(Istar(), group)) == pytest.approx(0, abs=1e-6)
    everything = advantages(Istar(baseline="all", norm="none"), group)
    assert sum(sum(of) for of in everything) == pytest.approx(0, abs=1e-6)
