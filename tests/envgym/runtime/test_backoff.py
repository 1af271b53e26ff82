"""Pauses between attempts: they double up to a longest one, and no pause passes the deadline."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.runtime.backoff import Backoff


def test_a_worked_example_of_the_pauses() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause_s(attempt) for attempt in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.pause_s(2, jitter=0.5) == 1.5  # 2 s less half of one half
    assert backoff.pause_s(2, left_s=0.25) == 0.25
    assert backoff.pause_s(2, left_s=-1.0) == 0.0


@given(st.integers(0, 10**6), st.floats(0, 0.999), st.floats(-1, 100))
def test_a_pause_is_never_longer_than_it_may_be(attempt: int, jitter: float, left_s: float) -> None:
    pause_s = Backoff(0.1, 7.0).pause_s(attempt, left_s=left_s, jitter=jitter)
    assert 0.0 <= pause_s <= min(7.0, max(left_s, 0.0))
    assert Backoff(0.1).pause_s(attempt) >= 0.1
