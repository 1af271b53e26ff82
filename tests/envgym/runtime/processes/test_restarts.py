"""Restarts: so many within the window, each after twice the delay of the one before."""

from envgym.runtime.processes.restarts import RETRIED, RestartBudget, RestartPolicy, count_failure, failure_counts


def test_delays_double_until_the_restarts_of_a_process_are_spent() -> None:
    budget = RestartBudget(RestartPolicy(restarts=3, window_s=100.0, first_delay_s=0.5))
    assert [budget.take("a", now=now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.5, 1.0, 2.0, None]
    assert budget.take("b", now=3.0) == 0.5


def test_restarts_before_the_window_are_forgotten() -> None:
    budget = RestartBudget(RestartPolicy(restarts=2, window_s=100.0, first_delay_s=0.5))
    assert [budget.take("a", now=now) for now in (0.0, 50.0, 99.0)] == [0.5, 1.0, None]
    assert budget.take("a", now=100.0) == 1.0  # that of 50 is counted
    assert budget.take("a", now=1000.0) == 0.5


def test_without_restarts_the_first_death_is_the_last() -> None:
    assert RestartBudget(RestartPolicy(restarts=0)).take("a", now=0.0) is None


def test_what_was_counted_is_a_copy_that_stays() -> None:
    before = failure_counts()
    count_failure(RETRIED)
    assert (failure_counts() - before) == {RETRIED: 1}
