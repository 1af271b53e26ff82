"""Reinforce-Ada: when sampling ends, which episodes are kept, and a baseline of all draws."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.turns import Scored
from envgym.trainer.methods.allocators.base import Draws, draw_metrics, draws_of, keep_episodes
from envgym.trainer.methods.allocators.reinforce_ada import ReinforceAda
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo
from envgym.trainer.methods.credit.reinforce_ada import ReinforceAdaCredit
from envgym.trainer.methods.protocols import TaskRequest
from tests.support.credit_trees import branched, group_of, per_node
from tests.support.example_trees import outcome_group

REQUEST = TaskRequest("env", 0, 8)


def goes_on(method: ReinforceAda, rewards: Sequence[float | None], round: int = 0) -> bool:
    return method.extend(REQUEST, outcome_group(*rewards), round=round, step=0) is not None


def kept_rewards(group: Group) -> list[float | None]:
    return [e.reward.value if isinstance(e.reward, Scored) else None for e in group.trajectories]


def finished(method: ReinforceAda, *rewards: float | None) -> Group:
    return method.finish(REQUEST, outcome_group(*rewards))


def test_balanced_sampling_ends_with_two_of_each_and_positive_focused_with_a_success() -> None:
    balanced, focused = ReinforceAda(), ReinforceAda(exit="positive_focused")
    assert goes_on(balanced, [1, 0, 0, 0])  # one success: 1 < 4 // 2
    assert not goes_on(balanced, [1, 0, 0, 1])
    assert goes_on(balanced, [1, 1, 1, 0])
    assert not goes_on(focused, [1, 0, 0, 0])
    assert goes_on(focused, [0, 0, 0, 0.7])  # above .7, not at it


def test_sampling_ends_after_the_last_round() -> None:
    assert goes_on(ReinforceAda(), [0] * 24, round=2)
    assert not goes_on(ReinforceAda(), [0] * 32, round=3)
    assert ReinforceAda().extend(REQUEST, outcome_group(0, 0), round=0, step=3) == REQUEST


@pytest.mark.parametrize(
    "rewards, kept",
    [
        ([0, 0, 1, 0, 1, 1], [0, 0, 1, 1]),  # two of each, the first drawn
        ([0, 0, 1, 0, 0, 0], [0, 0, 1, 0]),  # one success, three failures
        ([1, 1, 1, 1, 0], [1, 1, 1, 0]),  # one failure, three successes
        ([0, 0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, None, 0], [1, None, 0]),  # what is invalid is counted, and kept
    ],
)
def test_what_one_side_lacks_the_other_fills(rewards: list[float | None], kept: list[float | None]) -> None:
    assert kept_rewards(finished(ReinforceAda(), *rewards)) == kept


@pytest.mark.parametrize(
    "num_successes, num_draws, kept_successes",
    [
        (1, 32, 1),  # ceil(4 * 1 / 32) = 1
        (16, 32, 2),
        (20, 32, 3),  # ceil(2.5)
        (31, 32, 3),  # at most n - 1
        (32, 32, 4),  # without a failure all four are successes
    ],
)
def test_positive_focused_keeps_the_share_of_successes(num_successes: int, num_draws: int, kept_successes: int) -> None:
    rewards = [1.0] * num_successes + [0.0] * (num_draws - num_successes)
    group = finished(ReinforceAda(exit="positive_focused"), *rewards)
    assert kept_rewards(group) == [1.0] * kept_successes + [0.0] * (4 - kept_successes)


def test_all_draws_are_remembered_and_shown_in_the_metrics() -> None:
    group = finished(ReinforceAda(), 1, 0, 0, 0, 0, 0, 0, 0)
    assert draws_of(group) == Draws(8, 0.125, 1)
    assert draw_metrics([group, outcome_group(1, 1)]) == {"collect/draws": 8.0, "collect/draws_reward": 0.125}
    assert draw_metrics([outcome_group(1, 1)]) == {}
    assert draws_of(outcome_group(1, 0)) is None


def test_advantage_is_reward_minus_the_rate_of_all_draws() -> None:
    group = finished(ReinforceAda(), 1, 0, 0, 0, 0, 0, 0, 0)  # p = 1/8; kept are 1 and three 0

    def advantages(norm: str) -> list[float]:
        credit = ReinforceAdaCredit.model_validate({"norm": norm})
        return [value for (value,) in per_node(credit(group))]

    assert advantages("none") == pytest.approx([0.875, -0.125, -0.125, -0.125])
    # sqrt(1/8 * 7/8 * 8/7) = .353553, the deviation of the 8 draws: .875 / .353553 = 2.474874
    assert advantages("deviation") == pytest.approx([2.474874, -0.353553, -0.353553, -0.353553], abs=1e-4)
    assert advantages("rate") == pytest.approx([7.0, -1.0, -1.0, -1.0], abs=1e-3)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=12))
def test_credit_without_an_allocator_with_the_deviation_is_grpo_on_successes(rewards: list[float]) -> None:
    group = outcome_group(*rewards)
    ours, reference = (per_node(credit(group)) for credit in (ReinforceAdaCredit(norm="deviation"), Grpo()))
    assert [value for (value,) in ours] == pytest.approx([value for (value,) in reference], abs=1e-6)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12))
def test_credit_without_an_allocator_is_dr_grpo_on_successes(rewards: list[float]) -> None:
    group = outcome_group(*rewards)
    ours, reference = (per_node(credit(group)) for credit in (ReinforceAdaCredit(), DrGrpo()))
    assert [value for (value,) in ours] == pytest.approx([value for (value,) in reference])


draws = st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=32)


@given(draws, st.sampled_from(["balanced", "positive_focused"]))
def test_kept_are_the_first_of_each_kind_and_as_many_as_there_are(rewards: list[float | None], exit: str) -> None:
    method = ReinforceAda.model_validate({"exit": exit})
    kept = kept_rewards(finished(method, *rewards))
    valid = [reward for reward in kept if reward is not None]
    num_valid = sum(reward is not None for reward in rewards)
    assert len(valid) == min(4, num_valid)
    assert kept.count(None) == rewards.count(None)
    both = 1.0 in rewards and 0.0 in rewards
    assert not both or (1.0 in valid and 0.0 in valid)


def test_leaves_of_a_tree_are_pruned_one_by_one() -> None:
    tree = branched("t", (0, None), (1, 1.0), (1, 0.0))
    group = group_of(tree)
    first, _ = group.trajectories
    kept = keep_episodes(group, [first])
    assert [episode.leaf for episode in kept.trajectories] == [first.leaf]
    assert kept.trees[0].nodes[3].is_cut
    assert keep_episodes(group, group.trajectories) == group
    assert keep_episodes(group, []).trees == ()
