"""Hard prompts: who is hard, who comes when there are too few, and the case that is uniform."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.curricula.hard_prompts import HardPrompts
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import EnvSupply, TaskRequest, TaskStats
from tests.support.graded import choose

SUPPLY = [EnvSupply("a", 1.0, 8)]


def draw(curriculum: HardPrompts | Uniform, rates: dict[int, tuple[int, float]], groups: int) -> list[TaskRequest]:
    """Return the draws of the first step; `rates` are attempts and sum of rewards by task."""
    stats = {("a", index): TaskStats(attempts, rewards, rewards, 1) for index, (attempts, rewards) in rates.items()}
    return choose(curriculum, groups=groups, size=4, supplies=SUPPLY, stats=stats, seed=3)


def test_hard_tasks_come_first_then_the_others_by_mean_reward() -> None:
    # 0: 1/4 is hard; 1: never judged; 2: 3 attempts are too few; 3: 2/4; 4: 3/8; the others always succeed
    rates = {0: (4, 1.0), 2: (3, 3.0), 3: (4, 2.0), 4: (8, 3.0), 5: (4, 4.0), 6: (4, 4.0), 7: (4, 4.0)}
    chosen = [request.index for request in draw(HardPrompts(spare=2), rates, 4)]  # of all 8 tasks
    assert set(chosen[:3]) == {0, 1, 2}
    assert chosen[3] == 4
    assert {request.index for request in draw(HardPrompts(spare=2, at_most=0.375), rates, 4)} == {0, 1, 2, 4}


@given(st.dictionaries(st.integers(0, 7), st.tuples(st.integers(1, 8), st.floats(0, 8))), st.integers(1, 8))
def test_without_spare_draws_they_are_the_uniform_ones(rates: dict[int, tuple[int, float]], groups: int) -> None:
    drawn = draw(HardPrompts(spare=1), rates, groups)
    assert sorted(item.index for item in drawn) == sorted(item.index for item in draw(Uniform(), rates, groups))


@given(st.dictionaries(st.integers(0, 7), st.tuples(st.integers(4, 8), st.floats(0, 4))))
def test_without_hard_tasks_among_the_draws_none_is_missing(rates: dict[int, tuple[int, float]]) -> None:
    chosen = [item.index for item in draw(HardPrompts(spare=4), rates, 2)]
    hard = [index for index in range(8) if index not in rates or rates[index][1] / rates[index][0] <= 0.25]
    assert len(chosen) == 2
    assert len([index for index in chosen if index in hard]) == min(2, len(hard))
