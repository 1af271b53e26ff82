"""sGPO: group sizes by success rate, a profile of every task, and phases from easy to hard."""

from pathlib import Path

import pytest

from envgym.errors import SettingsError
from envgym.trainer.methods.curricula.sgpo import Sgpo, group_size_for
from envgym.trainer.methods.protocols import EnvSupply, TaskRequest
from tests.support.graded import choose, observe

SUPPLIES = [EnvSupply("a", 1.0, 6)]


def rewards(successes: int) -> list[float]:
    return [1.0] * successes + [0.0] * (8 - successes)


def profiled(*successes: int, **settings: float) -> Sgpo:
    """Return a curriculum that has seen so many successes of 8 of tasks 0, 1 ..., in one step."""
    curriculum = Sgpo.model_validate(settings)
    supplies = [EnvSupply("a", 1.0, len(successes))]
    requests = choose(curriculum, groups=len(successes), supplies=supplies)
    assert [(request.index, request.group_size) for request in requests] == [(n, 8) for n in range(len(successes))]
    observe(curriculum, requests, *map(rewards, successes))
    return curriculum


def drawn(curriculum: Sgpo, steps: range, size: int = 6) -> list[tuple[int, int]]:
    supplies = [EnvSupply("a", 1.0, size)]
    requests = [request for step in steps for request in choose(curriculum, step, groups=2, supplies=supplies)]
    return [(request.index, request.group_size) for request in requests]


def test_published_group_sizes_for_successes_of_8() -> None:
    assert [group_size_for(successes / 8) for successes in range(9)] == [0, 8, 4, 2, 2, 2, 2, None, None]


def test_profile_asks_for_every_task_that_is_not_known() -> None:
    curriculum = Sgpo()
    first = choose(curriculum, supplies=SUPPLIES)
    observe(curriculum, first, rewards(1), rewards(2), [None], rewards(4))
    second = choose(curriculum, step=1, supplies=SUPPLIES)
    assert [request.index for request in first] == [0, 1, 2, 3]
    assert [request.index for request in second] == [2, 4, 5]  # what was invalid comes again
    metrics = observe(curriculum, second, rewards(3), rewards(3), rewards(3), step=2)
    assert metrics["profiled"] == 6.0
    assert {size for _, size in drawn(curriculum, range(2, 3))} == {2}


def test_phases_go_from_easy_to_hard_and_the_last_one_goes_on() -> None:
    curriculum = profiled(8, 4, 2, 1, 6, 3)  # 0 is dropped; 1, 4, 5 get 2; 2 gets 4; 3 gets 8
    found = drawn(curriculum, range(1, 5))
    assert {index for index, _ in found[:3]} == {1, 4, 5}
    assert [size for _, size in found] == [2, 2, 2, 4, 8, 8, 8, 8]
    assert found[3] == (2, 4)
    assert {index for index, _ in found[4:]} == {3}
    assert drawn(curriculum, range(2, 5)) == found[2:]


def test_unsolved_tasks_join_every_phase_at_its_size() -> None:
    curriculum = profiled(4, 1, 0, 0, unsolved=0.5)
    found = drawn(curriculum, range(1, 3), size=4)
    joined = {index for index, _ in found} & {2, 3}
    assert len(joined) == 1
    (unsolved,) = joined
    assert sorted(found) == sorted([(0, 2), (unsolved, 2), (1, 8), (unsolved, 8)])


def test_steps_that_get_smaller_leave_no_task_out_and_repeat_none(tmp_path: Path) -> None:
    supplies = [EnvSupply("a", 1.0, 6)]
    whole = drawn(profiled(4, 4, 4, 2, 2, 1), range(1, 4))
    curriculum, found = profiled(4, 4, 4, 2, 2, 1), list[tuple[int, int]]()
    for step, (first, size) in enumerate([(6, 2), (8, 1), (9, 1), (10, 2)], start=1):
        requests = choose(curriculum, step, groups=size, supplies=supplies, num_drawn=first)
        found += [(request.index, request.group_size) for request in requests]
        curriculum.save(tmp_path)
        curriculum = Sgpo()
        curriculum.load(tmp_path)
    assert found == whole


def test_epochs_repeat_a_phase_in_another_order() -> None:
    curriculum = profiled(4, 4, 4, 4, 4, 4, epochs=2)
    found = [index for index, _ in drawn(curriculum, range(1, 7))]
    assert sorted(found[:6]) == sorted(found[6:]) == list(range(6))


def test_tasks_that_are_all_trivial_or_hopeless_are_refused() -> None:
    curriculum = profiled(8, 8, 0)
    with pytest.raises(SettingsError, match="profiled tasks must hold some to train on, got 1 that are never"):
        drawn(curriculum, range(1, 2), size=3)


def test_state_comes_back(tmp_path: Path) -> None:
    before, after = profiled(4, 2, 1, 6, 3, 0), Sgpo()
    before.save(tmp_path)
    after.load(tmp_path)
    assert drawn(after, range(1, 4)) == drawn(before, range(1, 4))
    assert isinstance(choose(after, 1, supplies=SUPPLIES)[0], TaskRequest)
