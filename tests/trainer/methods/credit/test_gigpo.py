"""GiGPO: the published vector with its parts, reductions, laws, and states that must not merge."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import InvalidInput
from envgym.trainer.methods.credit.gigpo import Gigpo, turn_states
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo
from tests.support import example_trees as cases
from tests.support.credit_trees import chain, chains, group_of, per_node

PAPER = group_of(chain("A", [0, 0, 1], ["s1", "s2"]), chain("B", [0, 0], ["s1"]))
"""A visits s0, s1, s2 and is paid at the end; B visits s0, s1."""


def both(found: list[list[float]]) -> list[float]:
    return [advantage for episode in found for advantage in episode]


def test_published_vector_of_both_terms_pooled_by_step() -> None:
    found = per_node(Gigpo(discount=0.9, pooling="step")(PAPER))
    assert both(found) == pytest.approx([0.805, 0.85, 0.4, -1.005, -1.05])


def test_published_parts() -> None:
    # returns [.81, .9, 1], [0, 0]; by step the mean is 3/5, by trajectory 1/2
    by_step = per_node(Gigpo(discount=0.9, pooling="step", step_weight=0)(PAPER))
    by_trajectory = per_node(Gigpo(discount=0.9, step_weight=0)(PAPER))
    whole = per_node(Gigpo(discount=0.9)(PAPER))
    assert both(by_step) == pytest.approx([0.4, 0.4, 0.4, -0.6, -0.6])
    assert both(by_trajectory) == pytest.approx([0.5, 0.5, 0.5, -0.5, -0.5])
    inner = [a - b for a, b in zip(both(whole), both(by_trajectory), strict=True)]
    assert inner == pytest.approx([0.405, 0.45, 0.0, -0.405, -0.45])


def test_by_default_long_episodes_weigh_no_more_than_short_ones() -> None:
    # mean of 1 and 0, though the first has 9 turns
    found = per_node(Gigpo(step_weight=0)(chains([0.0] * 8 + [1.0], [0.0])))
    assert found == [[0.5] * 9, [-0.5]]


def test_state_visited_twice_by_one_episode_is_an_anchor() -> None:
    # A: turns 1 and 2 both in `x`, returns 1 and 1; B: turn 1 in `x`, return 0; mean 2/3
    group = group_of(chain("A", [0, 0, 1], ["x", "x"]), chain("B", [0, 0], ["x"]))
    found = per_node(Gigpo(discount=1)(group))
    assert found[0] == pytest.approx([0.5 + 0.5, 0.5 + 1 / 3, 0.5 + 1 / 3])
    assert found[1] == pytest.approx([-0.5 - 0.5, -0.5 - 2 / 3])


def test_states_are_the_prompt_and_the_observations() -> None:
    (first, _) = PAPER.valid
    assert turn_states(first) == [(1, 2, 3, 4), "s1", "s2"]


def test_groups_never_cross_tasks() -> None:
    """A published implementation keys step groups by the state alone, and so merges equal states of two prompts."""

    def of_task(key: str, reward: float) -> Tree:
        return replace(chain(key, [0, reward], ["same state"]), task_key=key)

    with pytest.raises(InvalidInput, match="group must hold trees of one task"):
        group_of(of_task("a", 1.0), of_task("b", 0.0))


def test_group_of_one_has_advantage_zero_also_where_it_meets_a_state_again() -> None:
    assert per_node(Gigpo()(group_of(chain("A", [0, 0, 1], ["x", "x"])))) == [[0.0, 0.0, 0.0]]


def test_invalid_episode_is_no_anchor() -> None:
    dead = cases.outcome_tree("dead", None)
    assert per_node(Gigpo()(group_of(*PAPER.trees, dead))) == per_node(Gigpo()(PAPER))


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_without_the_second_term_it_is_dr_grpo_or_grpo(turns: list[list[float]]) -> None:
    group: Group = chains(*turns)
    assert per_node(Gigpo(step_weight=0)(group)) == per_node(DrGrpo()(group))
    assert per_node(Gigpo(step_weight=0, norm="mean_std")(group)) == per_node(Grpo()(group))


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5), st.floats(0, 1))
def test_second_term_sums_to_zero_over_every_state(turns: list[list[float]], discount: float) -> None:
    group = chains(*turns)  # all observations are empty, so turns behind the first share one state
    whole = per_node(Gigpo(discount=discount)(group))
    outer = per_node(Gigpo(step_weight=0)(group))
    inner = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(whole, outer, strict=True)]
    assert sum(episode[0] for episode in inner) == pytest.approx(0.0, abs=1e-9)
    assert sum(sum(episode[1:]) for episode in inner) == pytest.approx(0.0, abs=1e-9)
