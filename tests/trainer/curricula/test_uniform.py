"""The uniform curriculum: exact shares, epochs without repetition, a pure function of the step."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.curricula.uniform import Uniform
from envgym.trainer.points import EnvSupply, TaskRequest


def draw(steps: range, supplies: list[EnvSupply], *, groups: int = 4, seed: int = 0) -> list[TaskRequest]:
    return [
        request
        for step in steps
        for request in Uniform().choose(
            step=step, num_groups=groups, group_size=8, supplies=supplies, stats={}, seed=seed
        )
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


def test_steps_are_drawn_alike_whatever_came_before() -> None:
    supplies = [EnvSupply("a", 2.0, None), EnvSupply("b", 1.0, 7)]
    assert draw(range(3, 5), supplies) == draw(range(5), supplies)[12:]
    assert draw(range(2), supplies, seed=0) != draw(range(2), supplies, seed=1)
