"""The headline numbers of an evaluation."""

import math

import pytest

from envgym.agents.evaluation.play import EvalRecord
from envgym.trainer.metrics.evaluation import evaluation_metrics


def record(*rewards: float | None) -> EvalRecord:
    return EvalRecord(
        env_id="math/arithmetic-v0",
        label="held-out",
        step=0,
        temperature=0.0,
        success_at=1.0,
        rewards={f"test/{number}": (reward,) for number, reward in enumerate(rewards)},
        endings={"TERMINATED": len(rewards)},
        costs={},
        seconds=1.0,
    )


@pytest.mark.parametrize(
    "rewards,success,tasks,invalid", [((1.0, 0.0), 0.5, 2, 0), ((1.0, None, None, None), 1.0, 1, 3)]
)
def test_success_is_over_the_valid_episodes(
    rewards: tuple[float | None, ...], success: float, tasks: int, invalid: int
) -> None:
    found = evaluation_metrics(record(*rewards))
    assert (found["success"], found["tasks"], found["invalid"]) == (success, tasks, invalid)
    assert found["success_low"] <= success <= found["success_high"]
    assert found["invalid_share"] == invalid / len(rewards)


def test_success_is_unknown_where_no_episode_is_valid() -> None:
    found = evaluation_metrics(record(None, None))
    assert all(math.isnan(found[name]) for name in ("success", "success_low", "success_high"))
    assert (found["tasks"], found["invalid"], found["invalid_share"]) == (2, 2, 1.0)
