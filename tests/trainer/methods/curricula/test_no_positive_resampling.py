"""ScaleRL's no-positive-resampling: solved tasks are replaced, all others are drawn as before."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.methods.curricula.no_positive_resampling import NoPositiveResampling
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import EnvSupply, TaskStats
from tests.support.graded import choose

SUPPLIES = [EnvSupply("a", 1.0, 12)]


def solved(*indices: int, rate: float = 0.9) -> dict[tuple[str, int], TaskStats]:
    return {("a", index): TaskStats(10, 10 * rate, 0.0, 1) for index in indices}


def test_without_solved_tasks_it_is_uniform() -> None:
    just_below = solved(*range(12), rate=0.89)
    for step in range(4):
        assert choose(NoPositiveResampling(), step, supplies=SUPPLIES) == choose(Uniform(), step, supplies=SUPPLIES)
        assert choose(NoPositiveResampling(), step, supplies=SUPPLIES, stats=just_below) == choose(
            Uniform(), step, supplies=SUPPLIES
        )


@given(st.sets(st.integers(0, 11), max_size=11), st.integers(0, 20))
def test_solved_tasks_are_not_sampled_and_the_others_keep_their_places(indices: set[int], step: int) -> None:
    stats = solved(*indices)
    found = choose(NoPositiveResampling(), step, supplies=SUPPLIES, stats=stats)
    uniform = choose(Uniform(), step, supplies=SUPPLIES)
    assert len(found) == 4
    assert not {request.index for request in found} & indices
    for request, before in zip(found, uniform, strict=True):
        assert request == before or before.index in indices
    assert found == choose(NoPositiveResampling(), step, supplies=SUPPLIES, stats=stats)


def test_when_all_is_solved_a_step_still_has_tasks() -> None:
    everything = solved(*range(12))
    assert choose(NoPositiveResampling(), supplies=SUPPLIES, stats=everything) == choose(Uniform(), supplies=SUPPLIES)
