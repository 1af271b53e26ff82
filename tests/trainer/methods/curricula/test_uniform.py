"""The uniform curriculum: exact shares, epochs without repetition, a pure function of the step."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.curricula.uniform import Uniform, turns_dealt
from envgym.trainer.methods.protocols import EnvSupply, TaskRequest
from tests.support.graded import choose


def draw(steps: range, supplies: list[EnvSupply], *, groups: int = 4, seed: int = 0) -> list[TaskRequest]:
    return [
        request for step in steps for request in choose(Uniform(), step, groups=groups, supplies=supplies, seed=seed)
    ]


def test_an_epoch_gives_every_task_once() -> None:
    supply = [EnvSupply("a", 1.0, 12)]
    drawn = draw(range(6), supply)
    assert sorted(request.index for request in drawn[:12]) == list(range(12))
    assert sorted(request.index for request in drawn[12:]) == list(range(12))
    assert [r.index for r in drawn[:12]] != [r.index for r in drawn[12:]]


@given(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3), st.integers(1, 5))
def test_shares_are_exact_up_to_one_group(weights: list[float], groups: int) -> None:
    supplies = [EnvSupply(str(number), weight, None) for number, weight in enumerate(weights)]
    drawn = draw(range(10), supplies, groups=groups)
    assert len(drawn) == 10 * groups
    for supply in supplies:
        share = len(drawn) * supply.weight / sum(weights)
        assert abs(sum(request.env == supply.name for request in drawn) - share) <= len(weights)


@given(st.lists(st.sampled_from([0.1, 0.3, 1.0, 7.0, 1e3]), min_size=1, max_size=5), st.integers(0, 400))
def test_turns_are_those_of_dealing_one_by_one(weights: list[float], length: int) -> None:
    dealt = [0] * len(weights)
    for _ in range(length):  # the env furthest behind its share, the first of equals
        behind = [(count + 1) / weight for count, weight in zip(dealt, weights, strict=True)]
        dealt[behind.index(min(behind))] += 1
    assert turns_dealt(length, weights) == dealt


def test_late_step_is_drawn_at_once() -> None:
    supplies = [EnvSupply("a", 0.7, 10**6), EnvSupply("b", 0.3, None)]
    late = draw(range(10**12, 10**12 + 1), supplies, groups=10)
    assert [request.env for request in late].count("a") == 7


def test_steps_are_drawn_alike_whatever_came_before() -> None:
    supplies = [EnvSupply("a", 2.0, None), EnvSupply("b", 1.0, 7)]
    assert draw(range(3, 5), supplies) == draw(range(5), supplies)[12:]
    assert draw(range(2), supplies, seed=0) != draw(range(2), supplies, seed=1)
