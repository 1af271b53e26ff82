"""The turn limit truncates exactly at its turn."""

import pytest

from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.wrappers import TurnLimit
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


def test_limit_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="max_turns must be at least 1, got 0"):
        TurnLimit(Counter(), 0)
