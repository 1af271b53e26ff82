"""Which tasks a step samples: the curriculum chooses, a replay may change what was chosen; a checkpoint keeps draws."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from envgym.agents.protocols import Sampling
from envgym.core.serialize import task_from_json, task_to_json
from envgym.core.trajectory import StartState
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.files import write_json
from envgym.runs import read_object
from envgym.trainer.env_source import TaskPool
from envgym.trainer.methods.curricula.base import load_trees, save_trees
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext, TaskRequest
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.rollout.groups import Stats

_DRAWS: Final = "draws.json"


class GroupDraw(NamedTuple):
    """A group that was drawn for a step."""

    request: TaskRequest
    step: int
    """Train steps done before the one that it was drawn for."""
    number: int
    """Of the group among those of its step; with the step it names the group, and seeds derive from both."""
    version: int | None = None
    """Of the weights that it was begun with; None: it was not begun."""


class TaskDraws:
    """Draws the tasks of one step after the other."""

    def __init__(self, tasks: TaskPool, curriculum: Curriculum, replay: Replay | None, seed: int) -> None:
        """Arguments as for `Collector`."""
        self.curriculum = curriculum
        """Chooses the next tasks."""
        self._tasks, self._replay, self._seed = tasks, replay, seed

    def draw(self, step: int, stats: Stats, num_groups: int, group_size: int) -> Sequence[TaskRequest]:
        """Return the tasks for `num_groups` groups of the step after `step` steps. Raises: SettingsError: none."""
        context = CurriculumContext(
            step=step,
            num_groups=num_groups,
            group_size=group_size,
            supplies=self._tasks.supplies(),
            stats=stats,
            seed=self._seed,
        )
        requests = self.curriculum.choose(context)
        if not requests:
            do = "let it return some for every step"
            raise SettingsError.of("curriculum", "choose tasks", "none", where=f"step {step + 1}", do=do)
        requests = [self._tasks.resolve(request) for request in requests]
        if self._replay is None:
            return requests
        keys = [self._tasks.task(request.env, request.index).key for request in requests]
        return self._replay.plan(step + 1, requests, keys)


def save_draws(folder: Path, draws: Sequence[GroupDraw], *, next_step: int) -> None:
    """Write draws, the states that their episodes go on from, and the step for which the next ones are drawn."""
    save_trees(folder, [draw.request.start.tree for draw in draws if draw.request.start is not None])
    rows = [{**draw._asdict(), "request": _request_to_json(draw.request)} for draw in draws]
    write_json(folder / _DRAWS, {"next_step": next_step, "draws": rows})


def load_draws(folder: Path) -> tuple[list[GroupDraw], int]:
    """Return the draws that `save_draws` wrote, and the step for which the next ones are drawn."""
    data, trees = read_object(folder / _DRAWS), load_trees(folder)
    draws = [GroupDraw(**{**row, "request": _request_from_json(row["request"], trees)}) for row in data["draws"]]
    return draws, data["next_step"]


def _request_to_json(request: TaskRequest) -> dict[str, Any]:
    data = {field.name: getattr(request, field.name) for field in fields(TaskRequest)}
    start, sampling, task = request.start, request.sampling, request.task
    return {
        **data,
        "start": start and [start.tree.id, start.node],
        "sampling": sampling and asdict(sampling),
        "task": task and task_to_json(task),
        "prompts": dict(request.prompts),
        "metadata": dict(request.metadata),
    }


def _request_from_json(data: dict[str, Any], trees: dict[str, Tree]) -> TaskRequest:
    start, sampling, task = data["start"], data["sampling"], data["task"]
    if sampling is not None:
        sampling = Sampling(**{**sampling, "stop_token_ids": tuple(sampling["stop_token_ids"])})
    read = {
        "start": start and StartState(tree=trees[start[0]], node=start[1]),
        "sampling": sampling,
        "task": task and task_from_json(task),
    }
    return TaskRequest(**{**data, **read})
