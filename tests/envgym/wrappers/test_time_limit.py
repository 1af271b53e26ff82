"""The time limit reads the clock it is given."""

from collections.abc import Iterator

import pytest

from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.wrappers import TimeLimit
from tests.support.toys import Counter


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
def test_limit_must_be_positive(limit_s: float) -> None:
    with pytest.raises(InvalidInput, match="limit_s must be above 0"):
        TimeLimit(Counter(), limit_s)
