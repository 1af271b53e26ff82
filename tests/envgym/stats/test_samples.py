"""Samples keyed by task."""

from envgym.stats import successes_of


def test_success_is_a_reward_of_at_least_the_mark_and_invalid_stays_invalid() -> None:
    assert successes_of({"a": (0.49, 0.5, None, 1.0), "b": ()}, 0.5) == {"a": [False, True, None, True], "b": []}
