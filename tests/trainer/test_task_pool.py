"""Tasks that a run adds to those of its envs: what is refused, their indices, and that a resumed run has them."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.env_source import ADDED_FROM, TaskPool, build_env_sources
from envgym.trainer.methods.protocols import CurriculumContext, ObservingCurriculum, StepOutcome, TaskRequest
from envgym.trainer.train import train
from tests.support.tiny_runs import comparable
from tests.trainer.learner.test_checkpoint import Tally
from tests.trainer.test_critic_run import settings

GAME = "puzzles/guess_number-v0"


def pool() -> TaskPool:
    return TaskPool(build_env_sources([EnvSettings(id=GAME)], EvaluationSettings(tasks=2)))


def variant(task: Task) -> Task:
    """Return the task in other words; where that is all that differs, it is the same task."""
    return replace(task, id="variant", prompt=f"Please: {task.prompt}", payload={**task.payload, "variant": 1})


def test_added_task_has_an_index_of_its_own_and_keeps_it() -> None:
    tasks = pool()
    (supply,) = tasks.supplies()
    own = supply.task(0)
    assert (tasks.has_grown, supply.added) == (False, range(ADDED_FROM, ADDED_FROM))
    added = variant(own)
    assert [tasks.add(GAME, added), tasks.add(GAME, added)] == [ADDED_FROM, ADDED_FROM]
    (supply,) = tasks.supplies()
    assert (supply.task(ADDED_FROM), supply.task(0)) == (added, own)
    assert list(supply.added) == [ADDED_FROM]


def test_request_with_a_task_of_its_own_gets_its_index() -> None:
    tasks = pool()
    added = variant(tasks.task(GAME, 3))
    request = TaskRequest(GAME, 0, 4, task=added)
    assert tasks.resolve(request) == replace(request, index=ADDED_FROM)
    assert tasks.resolve(TaskRequest(GAME, 3, 4)) == TaskRequest(GAME, 3, 4)


def test_tasks_of_evaluations_and_unknown_indices_are_refused() -> None:
    tasks = pool()
    with pytest.raises(InvalidInput, match="must be a train task on which the run is not evaluated, got 'variant' of"):
        tasks.add(GAME, replace(variant(tasks.task(GAME, 0)), split=Split.TEST))
    (source,) = build_env_sources([EnvSettings(id=GAME)], EvaluationSettings(tasks=2)).values()
    with pytest.raises(InvalidInput, match="on which the run is not evaluated"):
        tasks.add(GAME, replace(source.held_out[0], split=Split.TRAIN))
    with pytest.raises(InvalidInput, match="task must be one of the 0 that were added, got 4294967296"):
        tasks.task(GAME, ADDED_FROM)


def test_saved_pool_comes_back(tmp_path: Path) -> None:
    tasks, again = pool(), pool()
    tasks.add(GAME, variant(tasks.task(GAME, 0)))
    tasks.save(tmp_path)
    again.load(tmp_path)
    assert again.task(GAME, ADDED_FROM) == tasks.task(GAME, ADDED_FROM)
    assert again.supplies()[0].added == tasks.supplies()[0].added


class Mining(Tally):
    """Trains on variants of tasks; how many it has seen decides which comes next."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        (supply,) = context.supplies
        assert len(supply.added) == self.count
        first = TaskRequest(supply.name, 0, context.group_size, task=variant(supply.task(self.count)))
        return [
            first,
            *(TaskRequest(supply.name, number, context.group_size) for number in range(1, context.num_groups)),
        ]

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        indices = [request.index for request in outcome.requests]
        assert indices == [ADDED_FROM + self.count, *range(1, len(indices))]
        assert {credit.trajectory.tree.id for credit in outcome.credits} <= {
            tree.id for group in outcome.groups for tree in group.trees
        }
        self.count += 1
        return {"seen": float(self.count)}


class Silent(Mining):
    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        return []


def test_resumed_run_goes_on_with_the_tasks_and_the_state_of_its_curriculum(tmp_path: Path) -> None:
    assert isinstance(Mining(), ObservingCurriculum)
    chosen = settings(tmp_path, curriculum={"name": f"{__name__}:Mining"})
    train(chosen)
    run = RunDirectory.open(tmp_path)
    whole = comparable(run)
    assert [row["curriculum/seen"] for row in whole if "curriculum/seen" in row] == [1.0, 2.0]
    shutil.rmtree(run.checkpoints / "step-000002")
    train(chosen, resume=True)
    assert comparable(run) == whole
    assert (run.checkpoints / "step-000002" / "parts" / "tasks" / "added.json").is_file()


def test_run_that_adds_no_task_saves_none(tmp_path: Path) -> None:
    train(settings(tmp_path))
    assert not (RunDirectory.open(tmp_path).checkpoints / "step-000002" / "parts").exists()


def test_curriculum_that_chooses_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"curriculum must choose tasks, got none \(step 1\)"):
        train(settings(tmp_path, curriculum={"name": f"{__name__}:Silent"}))
