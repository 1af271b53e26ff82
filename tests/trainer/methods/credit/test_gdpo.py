"""GDPO: components by hand, what GRPO cannot tell apart, and its reduction to one component."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Action, Observation
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import UnknownName
from envgym.trainer.batch.build import assign_credits
from envgym.trainer.methods.credit.gdpo import Gdpo
from envgym.trainer.methods.credit.lite_ppo import LitePpo
from envgym.trainer.methods.credit.outcome import Grpo
from tests.support.credit_trees import batch_advantages, per_node
from tests.support.example_trees import policy, start, turn


def episode(name: str, components: Mapping[str, float], ending: Ending = Ending.TERMINATED) -> Tree:
    reward = Scored(value=sum(components.values()), components=components)
    outcome = TurnOutcome(action=Action("done"), observation=Observation(), reward=reward)
    builder = start(name)
    builder.add(builder.root, turn(policy(10)), outcome=outcome, ending=ending)
    return builder.freeze()


def group_of(*episodes: Mapping[str, float]) -> Group:
    return Group(key="g", trees=tuple(episode(f"t{n}", components) for n, components in enumerate(episodes)))


def cut(*episodes: Mapping[str, float]) -> Group:
    trees = (episode(f"t{n}", components, Ending.TRUNCATED_TOKENS) for n, components in enumerate(episodes))
    return Group(key="cut", trees=tuple(trees))


def advantages(credit: Gdpo, *groups: Group) -> list[float]:
    return [advantage for (advantage,) in per_node(assign_credits(credit, groups))]


HAND = group_of({"answer": 1, "format": 1}, {"answer": 0, "format": 1}, {"answer": 0, "format": 0})


def test_components_are_standardised_one_by_one() -> None:
    # z(1,0,0) = 1.154701 -.577350 -.577350, z(1,1,0) = .577350 .577350 -1.154701: sums 1.732051, 0, -1.732051
    assert advantages(Gdpo(), HAND) == pytest.approx([1, 0, -1], abs=1e-5)
    # with half the format: 1.443376, -.288675, -1.154701, of variance 1.75
    weighted = advantages(Gdpo(weights={"format": 0.5}), HAND)
    assert weighted == pytest.approx([1.091089, -0.218218, -0.872872], abs=1e-5)


def test_rewards_that_add_up_alike_stay_apart() -> None:
    group = group_of(
        {"answer": 1, "format": 0}, {"answer": 0, "format": 1}, {"answer": 0, "format": 1}, {"answer": 1, "format": 1}
    )
    first, second, third, _ = (advantage for (advantage,) in per_node(Grpo()(group)))
    assert first == second == third
    first, second, third, _ = advantages(Gdpo(), group)
    assert first < second == third  # the format was missed by one alone


def test_scale_of_a_component_does_not_matter() -> None:
    small = group_of({"answer": 1, "format": 0.01}, {"answer": 0, "format": 0.01}, {"answer": 0, "format": 0})
    assert advantages(Gdpo(), small) == pytest.approx(advantages(Gdpo(), HAND), abs=1e-3)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
def test_one_group_with_one_component_gets_grpo_up_to_its_second_division(rewards: list[float]) -> None:
    """z has deviation std / (std + 1e-6) already, so that dividing by it again changes next to nothing."""
    once = batch_advantages(LitePpo(), rewards)
    if max(map(abs, once)) > 0.1:
        assert batch_advantages(Gdpo(), rewards) == pytest.approx(once, rel=1e-2, abs=1e-3)


def test_weight_of_an_unknown_component_names_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"reward component must be a known name, got 'fromat'.*did you mean format"):
        advantages(Gdpo(weights={"fromat": 1.0}), HAND)
    assert advantages(Gdpo(weights={"fromat": 1.0})) == []


def test_step_whose_episodes_were_all_cut_goes_on() -> None:
    credit = Gdpo(weights={"answer": 1.0, "format": 0.5})
    assert advantages(credit, cut({}, {}, {})) == [0.0, 0.0, 0.0]
    assert advantages(credit, cut({"format": 1}, {"format": 1})) == [0.0, 0.0]
    # z(1, 0) = .707107, -.707107, over the batch again
    assert advantages(credit, cut({"format": 1}, {"format": 0})) == pytest.approx([0.707107, -0.707107], abs=1e-5)


def test_component_that_comes_later_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    credit = Gdpo(weights={"answer": 1.0, "found key": 1.0})
    group = group_of({"answer": 1}, {"answer": 0})
    assert advantages(credit, group) == advantages(credit, group) == advantages(Gdpo(), group)
    (record,) = caplog.records
    assert "found key, which no episode of this step has" in record.message


def test_episode_without_components_has_none_beside_others_that_have_some() -> None:
    cut_short = Scored(value=0.0)
    group = group_of({"answer": 1}, {"answer": 0}, {})
    assert group.valid[2].reward == cut_short
    # z(1, 0, 0) alone: there is no component called reward
    assert advantages(Gdpo(), group) == pytest.approx(
        advantages(Gdpo(), group_of({"answer": 1}, {"answer": 0}, {"answer": 0}))
    )
