"""BOTS: the published update, the choice by distance from the target, and what tasks must say."""

from pathlib import Path

import numpy as np
import pytest

from envgym.errors import SettingsError
from envgym.trainer.methods.curricula.bots import Bots, Posterior, References, updated
from envgym.trainer.methods.protocols import EnvSupply, TaskRequest
from tests.support.graded import choose, graded_supply, observe

REFERENCES = References(np.array([0.2, 0.5, 0.0]), np.array([0.6, 0.9, 0.3]))


def test_published_update_of_all_tasks() -> None:
    posterior, error = updated(
        Posterior(np.ones(3), np.ones(3)),
        REFERENCES,
        np.array([1]),
        np.array([0.75]),
        np.array([16.0]),
        decay=0.1,
        rho=0.1,
    )
    assert posterior.strength == pytest.approx(0.624998, abs=1e-6)
    assert posterior.alpha == pytest.approx([1.719999, 13.0, 1.299999], abs=1e-6)
    assert posterior.beta == pytest.approx([1.880001, 5.0, 2.300001], abs=1e-6)
    assert error == pytest.approx(0.0, abs=1e-6)  # .5 + .625 * .4 is the observed .75


def test_strength_is_averaged_over_batches() -> None:
    before = Posterior(np.ones(3), np.ones(3), strength=0.0)
    posterior, _ = updated(before, REFERENCES, np.array([1]), np.array([0.75]), np.array([16.0]), decay=0.1, rho=0.1)
    assert posterior.strength == pytest.approx(0.0624998, abs=1e-6)


def test_task_that_is_never_chosen_settles_where_published() -> None:
    # alpha + beta -> 2 + rho m / decay = 2 + .1 * 16 / .1 = 18
    posterior = Posterior(np.ones(3), np.ones(3))
    for _ in range(300):
        posterior, _ = updated(
            posterior, REFERENCES, np.array([1]), np.array([0.75]), np.array([16.0]), decay=0.1, rho=0.1
        )
    assert posterior.alpha[0] + posterior.beta[0] == pytest.approx(18.0)


def test_tasks_nearest_to_the_target_are_chosen() -> None:
    curriculum = Bots(sample=False)
    size = graded_supply().size
    assert size is not None
    alpha = [1.0 + index for index in range(size)]
    curriculum.restore({"graded": {"alpha": alpha, "beta": [10.0] * size, "strength": None, "rho": 0.1}})
    # alpha / (alpha + 10) is 1/2 at alpha = 10, the task of index 9; next to it are 11 (.0238 off) and 9 (.0263 off)
    assert [request.index for request in choose(curriculum, groups=3)] == [9, 10, 8]


def test_draws_are_repeatable_and_differ_by_step() -> None:
    first = choose(Bots(), groups=6)
    assert first == choose(Bots(), groups=6)
    assert first != choose(Bots(), step=1, groups=6)
    assert len({request.index for request in first}) == 6
    warm = Bots(temperature=1.0, sample=False)
    assert choose(warm, groups=6) != choose(warm, step=1, groups=6)


def test_batch_moves_the_posterior_and_adaptive_rho_halves_when_inference_is_wrong() -> None:
    curriculum = Bots(adaptive_rho=True)
    requests = choose(curriculum, groups=2)
    before = np.array(curriculum.state()["graded"]["alpha"])
    metrics = observe(curriculum, requests, [1.0, 1.0], [0.0, 0.0])
    after = np.array(curriculum.state()["graded"]["alpha"])
    assert after[requests[0].index] > before[requests[0].index] + 1
    assert metrics["rho/graded"] == 0.1
    assert curriculum.state()["graded"]["rho"] == (0.05 if metrics["error/graded"] >= 0.25 else 0.1)


def test_invalid_groups_teach_nothing() -> None:
    curriculum = Bots()
    requests = choose(curriculum, groups=1)
    assert observe(curriculum, requests, [None, None]) == {}


def test_state_comes_back(tmp_path: Path) -> None:
    before, after = Bots(), Bots()
    observe(before, choose(before, groups=2), [1.0, 0.0], [0.0, 0.0])
    before.save(tmp_path)
    after.load(tmp_path)
    assert after.state() == before.state()
    assert choose(after, step=1) == choose(before, step=1)


def test_tasks_without_rates_or_without_an_end_are_refused() -> None:
    with pytest.raises(SettingsError, match="metadata week must be a number, got None beside difficulty, weak, strong"):
        choose(Bots(weak="week"))
    with pytest.raises(SettingsError, match=r"tasks of e must end, got endless ones \(curriculum bots\)"):
        choose(Bots(), supplies=[EnvSupply("e", 1.0, None)])


def test_nothing_is_inferred_without_a_share_and_no_reference_is_read() -> None:
    curriculum = Bots(rho=0.0, weak="week", strong="stronk")
    assert not curriculum.task_needs()
    first, second = choose(curriculum, groups=2)
    metrics = observe(curriculum, [first, second], [1.0, 0.0], [0.0, 0.0])
    alpha = curriculum.state()["graded"]["alpha"]
    # .9 * 1 + .1 + 2 episodes * rate 1/2 = 2, then 1 for the failed task and for all that were not chosen
    assert alpha.pop(first.index) == pytest.approx(2.0)
    assert alpha == pytest.approx([1.0] * len(alpha))
    assert metrics["strength/graded"] == pytest.approx(0.25, abs=1e-5)


def test_envs_have_their_shares() -> None:
    supplies = [graded_supply("x", 1.0), graded_supply("y", 3.0)]
    requests = [request for step in range(4) for request in choose(Bots(), step, supplies=supplies)]
    assert [sum(request.env == env for request in requests) for env in ("x", "y")] == [4, 12]
    assert isinstance(requests[0], TaskRequest)
