"""Metrics of a step count episodes, valid ones where a reward is meant, and say why groups were dropped."""

import pytest

from envgym.core.trajectory import Group
from envgym.stats import estimate_success
from envgym.trainer.methods.filters.variance import ZeroVariance
from envgym.trainer.metrics.rollout import env_metrics, filter_metrics, rollout_metrics
from tests.support import example_trees as cases


def test_success_counts_valid_episodes_and_its_interval_counts_groups() -> None:
    groups = [cases.outcome_group(1, 1, None), cases.outcome_group(0, 1), cases.outcome_group(0, 0)]
    found = rollout_metrics(groups, success_at=1.0)
    # Group means 1, .5, 0 spread so much that 3 groups are 3 trials: Wilson's 1/2 -+ sqrt(z^2 (1/12 + z^2/36)) /
    # (1 + z^2/3) = 1/2 -+ 0.854424 / 2.280486, with z^2 = 3.841459
    assert found["train/success"] == 0.5
    assert found["train/success_low"] == pytest.approx(0.125335, abs=1e-5)
    assert found["train/success_high"] == pytest.approx(0.874665, abs=1e-5)
    assert (found["rollout/episodes"], found["rollout/invalid"], found["rollout/groups"]) == (7.0, 1.0, 3.0)
    assert found["reward/mean"] == pytest.approx(3 / 6)
    assert found["reward/answer"] == pytest.approx(3 / 6)
    assert found["ending/TERMINATED"] == pytest.approx(6 / 7)
    assert found["ending/ERROR_TOOL_INFRA"] == pytest.approx(1 / 7)


@pytest.mark.parametrize("rewards", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("num_groups", [1, 8])
def test_interval_of_groups_is_that_of_an_evaluation(rewards: tuple[int, int], num_groups: int) -> None:
    found = rollout_metrics([cases.outcome_group(*rewards)] * num_groups, success_at=1.0)
    tasks = {str(number): rewards for number in range(num_groups)}
    expected = estimate_success(tasks).interval
    assert (found["train/success_low"], found["train/success_high"]) == (expected.low, expected.high)


def test_envs_of_a_mixture_are_told_apart_and_share_the_groups() -> None:
    groups = [cases.outcome_group(1, 0), cases.outcome_group(1, 1), cases.outcome_group(0, None), cases.outcome_group()]
    found = env_metrics(["b", "a", "b", "c"], groups, success_at=1.0)
    assert found == {
        "envs/a/groups": 1.0,
        "envs/a/success": 1.0,
        "envs/a/reward": 1.0,
        "envs/b/groups": 2.0,
        "envs/b/success": 0.25,  # mean of the groups' 1/2 and 0
        "envs/b/reward": pytest.approx(1 / 3),  # of the valid episodes' 1, 0 and 0
        "envs/c/groups": 1.0,
    }


def test_group_without_valid_episode_moves_no_success() -> None:
    alone = rollout_metrics([cases.outcome_group(1, 0)], success_at=1.0)
    beside = rollout_metrics([cases.outcome_group(1, 0), cases.outcome_group(None, None)], success_at=1.0)
    assert alone["train/success"] == beside["train/success"] == 0.5
    assert "train/success" not in rollout_metrics([cases.outcome_group(None)], success_at=1.0)


def test_lengths_count_rows_and_costs_count_shared_edges_once() -> None:
    forked = Group(key="g", trees=(cases.shared_prefix_both_signs(),))
    found = rollout_metrics([forked], success_at=1.0)
    # two rows of 8 tokens; each episode sampled 3, the tree 4 (the shared turn's 2 once)
    assert found["rollout/row_tokens"] == 8.0
    assert found["rollout/sampled_tokens"] == 3.0
    assert found["cost/tokens_generated"] == 4.0
    assert found["rollout/turns"] == 2.0


def test_rewritten_episode_has_two_rows() -> None:
    found = rollout_metrics([Group(key="g", trees=(cases.context_rewrite(),))], success_at=1.0)
    assert found["rollout/rows_per_episode"] == 2.0
    assert found["rollout/row_tokens_max"] == 7.0


def test_every_drop_has_its_reason() -> None:
    groups = [
        cases.outcome_group(1, 1),
        cases.outcome_group(1, 0),
        cases.outcome_group(None),
        cases.outcome_group(0, 0),
    ]
    assert filter_metrics(ZeroVariance()(groups)) == {
        "filter/kept": 0.25,
        "filter/no_valid_episode": 0.25,
        "filter/zero_variance": 0.5,
    }
