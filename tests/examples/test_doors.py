"""The environment of `studies/trees`: what the doors and the letters are worth, and who can know."""

import statistics
from collections.abc import Callable

import pytest

import envgym
from envgym import Env
from envgym.conformance import CheckStatus, check_env_conformance
from envgym.errors import InvalidInput
from tests.support.pages import ROOT

DOORS = f"{ROOT / 'studies' / 'trees' / 'doors.py'}:Doors"
RIGHT = {"a": "3", "b": "1", "c": "4", "d": "2"}


def play(luck: float, seed: int, act: Callable[[str, int], str]) -> float:
    env: Env[object] = envgym.make(DOORS, luck=luck)
    shown = str(env.reset(seed=seed).observation)
    for turn in range(10):
        result = env.step(act(shown, turn))
        shown = str(result.observation)
        assert (result.reward != 0) <= result.terminated
    assert result.terminated
    return float(result.reward)


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_conforms(luck: float) -> None:
    checks = check_env_conformance(lambda: envgym.make(DOORS, luck=luck), num_tasks=5)
    assert [check.name for check in checks if check.status is CheckStatus.FAIL] == []


def test_skill_alone_is_paid_fully_and_doors_are_luck() -> None:
    def skilled(shown: str, turn: int) -> str:
        return RIGHT.get(shown[-1], "1")

    assert [play(0.0, seed, skilled) for seed in range(5)] == [1.0] * 5
    rewards = [play(1.0, seed, skilled) for seed in range(200)]
    assert set(rewards) == {-1.0, 1.0, 3.0}
    assert abs(statistics.fmean(rewards) - 1.0) < 4 * (2 / 200) ** 0.5  # two fair coins of +-1


@pytest.mark.parametrize("last, reward", [(2, 0.0), (3, 0.125), (9, 0.875), (10, 1.0)])
def test_each_right_letter_pays_an_eighth(last: int, reward: float) -> None:
    assert play(0.0, 7, lambda shown, turn: RIGHT.get(shown[-1], "1") if turn < last else "no") == reward


def test_sign_of_the_shift_stands_before_every_door_and_letter() -> None:
    signs = set()
    for seed in range(20):
        env: Env[object] = envgym.make(DOORS, luck=1.0)
        seen = [str(env.reset(seed=seed).observation)]
        while not (result := env.step("1")).terminated:
            seen.append(str(result.observation))
        assert (seen[0], [len(shown) for shown in seen]) == ("=?", [2] * 10)
        shift = float(result.reward)  # no letter was answered rightly by "1" alone but b
        shift -= sum(shown[1] == "b" for shown in seen[2:]) / 8
        assert {shown[0] for shown in seen[2:]} == {"+" if shift > 0 else "-" if shift < 0 else "="}
        signs.add(shift)
    assert signs == {-2.0, 0.0, 2.0}


@pytest.mark.parametrize(
    "settings, error",
    [({"luck": -1}, "luck must be at least 0"), ({"demonstrated": 2}, "demonstrated must lie in")],
)
def test_unusable_settings_are_refused(settings: dict[str, float], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        envgym.make(DOORS, **settings)
