"""The tasks of the steps: an epoch stays one when steps get smaller, and what was drawn ahead is not drawn again."""

from pathlib import Path

import pytest

from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.tasks import Split
from envgym.trainer.env_source import TaskPool, build_env_sources
from envgym.trainer.methods.curricula.hard_prompts import HardPrompts
from envgym.trainer.methods.curricula.hinted import Hinted
from envgym.trainer.methods.curricula.reworded import Reworded
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import Curriculum
from envgym.trainer.rollout.draws import TaskDraws
from tests.support.graded import GRADED, GradedTasks

SIZE = GradedTasks().size(Split.TRAIN)


def draws_of(curriculum: Curriculum) -> TaskDraws:
    sources = build_env_sources([EnvSettings(id=GRADED)], EvaluationSettings(tasks=1))
    return TaskDraws(TaskPool(sources), curriculum, None, seed=3)


def drawn(draws: TaskDraws, step: int, num_groups: int) -> list[int]:
    return [request.index for request in draws.draw(step, {}, per_round=num_groups, group_size=2).requests]


@pytest.mark.parametrize(
    "curriculum", [Uniform(), Hinted(until=0), Reworded(prompts={"x": "<{task}>"}), HardPrompts(spare=1)]
)
def test_an_epoch_gives_every_task_once_whatever_the_size_of_steps(curriculum: Curriculum) -> None:
    draws, sizes = draws_of(curriculum), [4, 4, 1, 2, 3, 1, 1, 4, 4, 4, 4]
    indices = [index for step, size in enumerate(sizes) for index in drawn(draws, step, size)]
    assert sorted(indices[:SIZE]) == list(range(SIZE))
    assert len(set(indices[SIZE : 2 * SIZE])) == len(indices[SIZE : 2 * SIZE])


def test_steps_of_one_size_are_drawn_as_ever() -> None:
    draws = draws_of(Uniform())
    assert [drawn(draws, step, 4) for step in (5, 6)] == [drawn(draws_of(Uniform()), step, 4) for step in (5, 6)]
    draws.forget(6)
    assert not draws.has_state


def test_what_was_drawn_ahead_comes_back(tmp_path: Path) -> None:
    before, after = draws_of(Uniform()), draws_of(Uniform())
    asked = [before.draw(step, {}, per_round=size, rounds=2, group_size=3) for step, size in enumerate([2, 2, 1])]
    before.forget(0)
    assert before.has_state
    before.save(tmp_path)
    after.load(tmp_path)
    again = [after.draw(step, {}, per_round=7, group_size=7) for step in (1, 2)]  # of other settings: it was begun
    assert again == asked[1:]
    assert [of.per_round for of in again] == [2, 1]
    assert drawn(after, 3, 1) == drawn(before, 3, 1)
