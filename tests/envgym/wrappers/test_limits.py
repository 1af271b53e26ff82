"""The turn limit truncates exactly at its turn, and the time limit reads the clock it is given."""

from collections.abc import Iterator

import pytest

from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.wrappers import TimeLimit, TurnLimit
from tests.support.toys import Counter


@pytest.mark.parametrize("max_turns", [1, 2, 5])
def test_episode_ends_at_the_limit_in_every_episode(max_turns: int) -> None:
    env = TurnLimit(Counter(), max_turns)
    for _ in range(2):
        env.reset(seed=0)
        endings = [env.step("x").info["envgym"].ending for _ in range(max_turns)]
        assert endings == [None] * (max_turns - 1) + [Ending.TRUNCATED_TURNS]


def test_world_that_ends_in_the_last_turn_terminates() -> None:
    env = TurnLimit(Counter(), 1)
    env.reset(seed=0)
    assert env.step("DONE").info["envgym"].ending is Ending.TERMINATED


def test_inner_limit_may_be_the_smaller_one() -> None:
    env = TurnLimit(Counter(max_turns=2), 5)
    env.reset(seed=0)
    assert [env.step("x").truncated for _ in range(2)] == [False, True]


def test_turn_limit_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="max_turns must be at least 1, got 0"):
        TurnLimit(Counter(), 0)


def test_episode_ends_at_the_first_turn_over_the_limit() -> None:
    times: Iterator[float] = iter([100.0, 103.0, 104.9, 105.0, 200.0, 201.0])
    env = TimeLimit(Counter(), 5.0, clock=lambda: next(times))
    env.reset(seed=0)  # at 100
    endings = [env.step("x").info["envgym"].ending for _ in range(3)]  # after 3, 4.9 and 5 seconds
    assert endings == [None, None, Ending.TRUNCATED_TIME]
    env.reset(seed=0)  # at 200
    assert env.step("x").info["envgym"].ending is None


def test_world_that_ends_late_still_terminates() -> None:
    times = iter([0.0, 99.0])
    env = TimeLimit(Counter(), 5.0, clock=lambda: next(times))
    env.reset(seed=0)
    assert env.step("DONE").info["envgym"].ending is Ending.TERMINATED


def test_fork_keeps_its_parents_start() -> None:
    now = [0.0]
    env = TimeLimit(Counter(), 5.0, clock=lambda: now[0])
    env.reset(seed=0)
    now[0] = 6.0
    assert env.fork().step("x").info["envgym"].ending is Ending.TRUNCATED_TIME


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_time_limit_must_be_positive(limit_s: float) -> None:
    with pytest.raises(InvalidInput, match="limit_s must be above 0"):
        TimeLimit(Counter(), limit_s)
