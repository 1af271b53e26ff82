"""AdaRFT: the tasks nearest to the target, and a target that follows the rewards."""

import math
from pathlib import Path

import pytest

from envgym.errors import SettingsError
from envgym.trainer.methods.curricula.ada_rft import AdaRft
from tests.support.graded import choose, graded_supply, observe

SUPPLY = graded_supply()


def difficulties(curriculum: AdaRft, groups: int = 4) -> list[float]:
    return [
        float(str(SUPPLY.task(request.index).metadata["difficulty"])) for request in choose(curriculum, groups=groups)
    ]


def test_tasks_nearest_to_the_target_come_first_and_again_while_it_stays() -> None:
    easiest = difficulties(AdaRft(), groups=3)
    everything = sorted(difficulties(AdaRft(), groups=100))
    assert easiest == everything[:3]
    curriculum = AdaRft(start=40)
    assert choose(curriculum) == choose(curriculum, step=7)
    assert max(abs(found - 40) for found in difficulties(curriculum)) <= 10


def test_target_follows_the_mean_reward() -> None:
    curriculum = AdaRft(start=20)
    requests = choose(curriculum, groups=2)
    # R = .75: 20 + 50 tanh(2 * .25) = 20 + 50 * .46211716 = 43.105858
    assert observe(curriculum, requests, [1.0, 1.0], [1.0, 0.0])["target"] == pytest.approx(43.105858, abs=1e-5)
    observe(curriculum, requests, [0.5, 0.5], [1.0, 0.0])
    assert curriculum.target == pytest.approx(43.105858, abs=1e-5)  # R is beta: it stays


def test_every_episode_counts_once_whatever_its_group() -> None:
    curriculum = AdaRft(start=60)
    # R = (1 + 0 + 0 + 0) / 4 = .25, not the mean .5 of the groups: 60 - 50 * .46211716
    metrics = observe(curriculum, choose(curriculum, groups=3), [1.0], [0.0, 0.0, 0.0, None], [None])
    assert metrics["target"] == pytest.approx(36.894142, abs=1e-5)


def test_target_stays_within_0_and_100() -> None:
    curriculum = AdaRft(start=0)
    requests = choose(curriculum, groups=1)
    assert observe(curriculum, requests, [0.0, 0.0])["target"] == 0.0
    for _ in range(10):
        observe(curriculum, requests, [1.0])
    assert curriculum.target == 100.0
    assert math.isclose(observe(curriculum, requests, [None])["target"], 100.0)


def test_state_comes_back(tmp_path: Path) -> None:
    before, after = AdaRft(), AdaRft()
    observe(before, choose(before, groups=1), [1.0])
    before.save(tmp_path)
    after.load(tmp_path)
    assert choose(after) == choose(before) != choose(AdaRft())


def test_tasks_must_say_how_difficult_they_are() -> None:
    with pytest.raises(SettingsError, match=r"metadata level must be a number, got None .*task 0 of graded"):
        choose(AdaRft(key="level"))
