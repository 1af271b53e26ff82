"""Annotations as rewards: by hand, the reduction to the env's reward, and that a missing value is no zero."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.core.turns import Ending, Invalid, Scored
from envgym.trainer.methods.annotators.base import annotate_trees
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.shaping.annotated import Annotated
from tests.support.credit_trees import branched, chain
from tests.support.example_trees import outcome_group, truncated_episode


def judged(group: Group, *values: float | None) -> Group:
    found: dict[str, list[Annotation]] = {tree.id: [] for tree in group.trees}
    for episode, value in zip(group.trajectories, values, strict=True):
        error = "slow" if value is None else None
        item = Annotation(name="judge", level="episode", node=episode.leaf, value=value, error=error)
        found[episode.tree.id].append(item)
    return annotate_trees(group, found)


def turns(group: Group, *values: float) -> Group:
    items = [Annotation(name="judge", level="turn", node=n, value=v) for n, v in enumerate(values, start=1)]
    return annotate_trees(group, {group.trees[0].id: items})


def test_a_value_is_added_at_the_end_and_named() -> None:
    shaped = Annotated(coef=0.5)(judged(outcome_group(1.0, 0.0), 1.0, -2.0))
    assert episode_rewards(shaped) == [1.5, -1.0]
    reward = shaped.trajectories[0].reward
    assert isinstance(reward, Scored)
    assert reward.components == {"answer": 1.0, "judge": 0.5}


def test_values_of_turns_are_paid_at_their_turns() -> None:
    # 1 -> {2, 3}: the shared turn is paid once in each episode
    group = Group(key="g", trees=(branched("t", (0, 0.0), (1, 1.0), (1, 0.0)),))
    shaped = Annotated(level="turn")(turns(group, 0.25, 0.5, -0.5))
    assert [turn.outcome.reward.value for turn in shaped.trajectories[0].turns] == [0.25, 1.5]  # type: ignore[union-attr]  # paid
    assert episode_rewards(shaped) == [1.75, -0.25]


def test_in_place_of_the_env_only_the_value_counts() -> None:
    group = Group(key="g", trees=(chain("t", [0.3, 1.0]),))
    assert episode_rewards(Annotated(instead=True)(judged(group, 0.7))) == pytest.approx([0.7])
    assert episode_rewards(Annotated(instead=True, level="turn")(turns(group, 0.1, 0.2))) == pytest.approx([0.3])


def test_in_place_of_the_env_no_component_of_its_reward_is_left() -> None:
    tree = chain("t", [0.0])
    reward = Scored(value=1.0, components={"answer": 1.0})
    outcome = replace(tree.nodes[1].outcome, reward=reward)  # type: ignore[type-var]  # a turn has one
    paid = Group(key="g", trees=(replace(tree, nodes=(tree.nodes[0], replace(tree.nodes[1], outcome=outcome))),))
    shaped = Annotated(instead=True)(judged(paid, 0.5)).valid[0].reward
    assert shaped == Scored(value=0.5, components={"judge": 0.5})


def test_an_episode_cut_inside_a_turn_gets_its_value_too() -> None:
    shaped = Annotated()(judged(Group(key="g", trees=(truncated_episode(),)), 2.0))
    assert episode_rewards(shaped) == [2.25]


@pytest.mark.parametrize("values", [(1.0, None, 0.0)])
def test_an_episode_whose_judge_failed_is_invalid_and_no_zero(values: tuple[float | None, ...]) -> None:
    shaped = Annotated()(judged(outcome_group(1.0, 1.0, 0.0), *values))
    assert episode_rewards(shaped) == [2.0, 0.0]
    assert shaped.trajectories[1].reward == Invalid(cause=Ending.ERROR_PARTY, reason="judge: slow")


def test_an_episode_without_annotation_is_invalid_too() -> None:
    shaped = Annotated()(outcome_group(1.0))
    assert shaped.trajectories[0].reward == Invalid(cause=Ending.ERROR_PARTY, reason="judge: not annotated")


@given(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=4))
def test_weight_zero_leaves_every_reward_as_it_was(rewards: list[float | None]) -> None:
    group = outcome_group(*rewards)
    valued = judged(group, *[1.0] * len(rewards))
    shaped = Annotated(coef=0.0)(valued)
    assert episode_rewards(shaped) == episode_rewards(group)
