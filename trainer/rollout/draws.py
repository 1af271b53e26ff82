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
from envgym.runs.directory import read_object
from envgym.runs.files import write_json
from envgym.trainer.env_source import TaskPool
from envgym.trainer.methods.curricula.base import load_trees, save_trees
from envgym.trainer.methods.protocols import Curriculum, CurriculumContext, TaskRequest
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.rollout.groups import Stats

_DRAWS: Final = "draws.json"
_COUNTS: Final = "counts.json"


class GroupDraw(NamedTuple):
    """A group that was drawn for a step."""

    request: TaskRequest
    step: int
    """Train steps done before the one that it was drawn for."""
    number: int
    """Of the group among those of its step; with the step it names the group, and seeds derive from both."""
    version: int | None = None
    """Of the weights that it was begun with; None: it was not begun."""


class StepDraws(NamedTuple):
    """What was drawn for a step."""

    requests: list[TaskRequest]
    per_round: int
    """Groups that are begun at once."""


class _Stretch(NamedTuple):
    """Steps for each of which equally many groups were drawn."""

    step: int
    """The first of them."""
    first: int
    """Groups that were drawn for the steps before."""
    num_groups: int
    """Groups of each step."""


class TaskDraws:
    """Draws the tasks of one step after the other. Checkpointed, so that what was drawn ahead is not drawn again."""

    def __init__(self, tasks: TaskPool, curriculum: Curriculum, replay: Replay | None, seed: int) -> None:
        self.curriculum = curriculum
        """Chooses the next tasks."""
        self._tasks, self._replay, self._seed = tasks, replay, seed
        self._stretches: list[_Stretch] = []
        self._ahead: dict[int, StepDraws] = {}
        """By step; those of steps that have their groups are forgotten."""

    @property
    def has_state(self) -> bool:
        """Whether a resumed run has to know more than the step."""
        return bool(self._ahead) or len(self._stretches) > 1

    def draw(
        self, step: int, stats: Stats, *, per_round: int, rounds: int = 1, group_size: int, keeps: bool = True
    ) -> StepDraws:
        """Return the tasks for the groups of the step after `step` steps: those that were drawn before, or new ones.

        Args:
            step: train steps done before.
            stats: what training has seen of each task.
            per_round: groups that are begun at once.
            rounds: most rounds of the step.
            group_size: episodes of a group.
            keeps: whether a checkpoint keeps them until they are forgotten.

        Raises: SettingsError: there are none.
        """
        draws = self._ahead.get(step)
        if draws is None:
            draws = StepDraws(list(self._choose(step, stats, per_round * rounds, group_size)), per_round)
        if keeps:
            self._ahead[step] = draws
        return draws

    def forget(self, step: int) -> None:
        """Drop what was drawn for the steps up to `step`, which have their groups."""
        self._ahead = {later: draws for later, draws in self._ahead.items() if later > step}

    def save(self, folder: Path) -> None:
        """Write what was drawn ahead, and how many groups each step had."""
        ahead = self._ahead.items()
        draws = [GroupDraw(request, step, n) for step, of in ahead for n, request in enumerate(of.requests)]
        save_draws(folder, draws, next_step=max(self._ahead, default=-1) + 1)
        per_round = [[step, of.per_round] for step, of in ahead]
        write_json(folder / _COUNTS, {"per_round": per_round, "stretches": self._stretches})

    def load(self, folder: Path) -> None:
        (draws, _), counts = load_draws(folder), read_object(folder / _COUNTS)
        self._ahead = {step: StepDraws([], per_round) for step, per_round in counts["per_round"]}
        for draw in draws:
            self._ahead[draw.step].requests.append(draw.request)
        self._stretches = [_Stretch(*stretch) for stretch in counts["stretches"]]

    def _num_before(self, step: int, num_groups: int) -> int:
        stretch = next((item for item in reversed(self._stretches) if item.step <= step), _Stretch(0, 0, num_groups))
        first = stretch.first + (step - stretch.step) * stretch.num_groups
        if not self._stretches or stretch.num_groups != num_groups:
            self._stretches.append(_Stretch(step, first, num_groups) if self._stretches else stretch)
        return first

    def _choose(self, step: int, stats: Stats, num_groups: int, group_size: int) -> Sequence[TaskRequest]:
        context = CurriculumContext(
            step=step,
            num_groups=num_groups,
            group_size=group_size,
            supplies=self._tasks.supplies(),
            stats=stats,
            seed=self._seed,
            num_drawn=self._num_before(step, num_groups),
        )
        requests = self.curriculum.choose(context)
        do = "let it return some for every step"
        SettingsError.unless(requests, "curriculum", "choose tasks", "none", where=f"step {step + 1}", do=do)
        requests = [self._tasks.resolve(request) for request in requests]
        if self._replay is None:
            return requests
        keys = [self._tasks.task(request.env, request.index).key for request in requests]
        return self._replay.plan(step + 1, requests, keys)


def save_draws(folder: Path, draws: Sequence[GroupDraw], *, next_step: int) -> None:
    """Write draws, the states that their episodes go on from, and the step for which the next ones are drawn."""
    save_trees(folder, [draw.request.start.tree for draw in draws if draw.request.start is not None])
    rows = [{**draw._asdict(), "request": request_to_json(draw.request)} for draw in draws]
    write_json(folder / _DRAWS, {"next_step": next_step, "draws": rows})


def load_draws(folder: Path) -> tuple[list[GroupDraw], int]:
    """Return the draws that `save_draws` wrote, and the step for which the next ones are drawn."""
    data, trees = read_object(folder / _DRAWS), load_trees(folder)
    draws = [GroupDraw(**{**row, "request": request_from_json(row["request"], trees)}) for row in data["draws"]]
    return draws, data["next_step"]


def request_to_json(request: TaskRequest) -> dict[str, Any]:
    """Write a request; of a start state, only the id of the tree and the node."""
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


def request_from_json(data: dict[str, Any], trees: dict[str, Tree]) -> TaskRequest:
    """Read what `request_to_json` wrote; `trees` has the trees of start states, by id."""
    start, sampling, task = data["start"], data["sampling"], data["task"]
    if sampling is not None:
        sampling = Sampling(**{**sampling, "stop_token_ids": tuple(sampling["stop_token_ids"])})
    read = {
        "start": start and StartState(tree=trees[start[0]], node=start[1]),
        "sampling": sampling,
        "task": task and task_from_json(task),
    }
    return TaskRequest(**{**data, **read})
