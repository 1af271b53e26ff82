"""R3: episodes begin inside a demonstration, nearer and nearer to its beginning."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr

from envgym.core.tasks import Split
from envgym.core.trajectory import Group, StartState, Trajectory
from envgym.core.turns import is_success
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory, read_object
from envgym.runs.episodes import trees_of
from envgym.runs.files import write_json
from envgym.seeds import generator
from envgym.trainer.methods.curricula.base import finite_size, load_trees, save_trees
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, EnvSupply, GroupSource, StepOutcome, TaskRequest

_SOLUTIONS = "solutions.json"


class R3(GroupSource):
    """Ask for a share of the groups from a state inside a successful episode of their task: a demonstration.

    A demonstration of T turns has T states, from its beginning (0 turns done) to the one before its last turn. `mixed`:
    every state alike. `staged`: in stage s of S, from the state after (T - 1) (1 - s / (S - 1)) turns, rounded, so that
    the first stage asks for the last turn alone and the last for everything. The reward is that of the whole episode;
    the turns of the demonstration are context. Demonstrations are the successes of `run`, whose tasks must end here,
    and the first success of each task in this run; before there is one, tasks are drawn as by `uniform`.

    Source: 2402.05808; the authors' code has the mixed form alone. Its rewards for numbers that are wrong are the env's
    matter, its PPO is `credit.name=gae_token`.
    """

    needs_start_states: ClassVar[bool] = True
    run: str | None = None
    """Directory of a run that saved its train episodes."""
    form: Literal["mixed", "staged"] = "mixed"
    """Which state of a demonstration a group begins at: any (`mixed`), or an earlier one with each stage
    (`staged`)."""
    stages: int = Field(default=4, ge=1)
    """Number S of stages of the form `staged`."""
    stage_steps: int = Field(default=50, ge=1)
    """Train steps of each stage."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups that begin inside a demonstration."""
    success_at: float = 1.0
    """Reward from which an episode is a demonstration."""
    _solutions: dict[tuple[str, int], Trajectory] = PrivateAttr(default_factory=dict)
    """(env, index) -> demonstration."""
    _is_read: bool = PrivateAttr(default=False)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        if self.run is not None and not self._is_read:
            self._read(self.run, context.supplies)
        requests = Uniform().choose(context)
        draws, tasks = generator(context.seed, "r3", context.step), sorted(self._solutions)
        if not tasks:
            return requests
        return [self._from_demonstration(request, tasks, context.step, draws) for request in requests]

    def _from_demonstration(
        self, request: TaskRequest, tasks: Sequence[tuple[str, int]], step: int, draws: np.random.Generator
    ) -> TaskRequest:
        is_taken, (env, index), place = (
            draws.random() < self.share,
            tasks[int(draws.integers(len(tasks)))],
            draws.random(),
        )
        if not is_taken:
            return request
        episode = self._solutions[env, index]
        states = states_of(episode)
        num_turns = int(place * (len(states) + 1)) if self.form == "mixed" else self._num_turns(len(states), step)
        start = states[num_turns - 1] if num_turns else None
        metadata = {"demonstrated_turns": num_turns}
        return replace(request, env=env, index=index, start=start, metadata=metadata)

    def _num_turns(self, most: int, step: int) -> int:
        stage = min(step // self.stage_steps, self.stages - 1)
        return round(most * (1 - stage / (self.stages - 1))) if self.stages > 1 else 0

    def _read(self, run: str, supplies: Sequence[EnvSupply]) -> None:
        """Take the demonstrations of a run. Raises: SettingsError: it has none of our tasks. RunError: it is no run."""
        trees = [tree for tree in trees_of(RunDirectory.open(Path(run)).episodes()) if tree.split is Split.TRAIN]
        indices = {
            supply.task(index).key: (supply.name, index)
            for supply in supplies
            for index in range(finite_size(supply, where="r3"))
        }
        for tree in trees:
            if tree.task_key in indices:
                self._add(indices[tree.task_key], Group(key=tree.id, trees=(tree,)))
        if not self._solutions:
            do = "name a run of the same tasks that succeeded at times, and saved its episodes"
            raise SettingsError.of("run", "hold successes of these tasks", "none", where=f"curriculum r3, {run}", do=do)
        self._is_read = True

    def _add(self, task: tuple[str, int], group: Group) -> None:
        successes = (episode for episode in group.valid if is_success(episode.reward, self.success_at))
        first = next(successes, None)
        if first is not None:
            self._solutions.setdefault(task, first)

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Keep the first success of each task."""
        for request, group in outcome.pairs:
            self._add((request.env, request.index), group)
        return {"demonstrated_tasks": float(len(self._solutions))}

    def save(self, folder: Path) -> None:
        save_trees(folder, [episode.tree for episode in self._solutions.values()])
        entries = [[*task, episode.tree.id, episode.leaf] for task, episode in self._solutions.items()]
        write_json(folder / _SOLUTIONS, {"solutions": entries, "is_read": self._is_read})

    def load(self, folder: Path) -> None:
        saved, trees = read_object(folder / _SOLUTIONS), load_trees(folder)
        self._solutions = {
            (env, index): Trajectory(tree=trees[tree], leaf=leaf) for env, index, tree, leaf in saved["solutions"]
        }
        self._is_read = saved["is_read"]


def states_of(episode: Trajectory) -> list[StartState]:
    """Return the states inside an episode from which others can go on, in order."""
    nodes = [(index, episode.tree.nodes[index]) for index in episode.path]
    return [
        StartState(tree=episode.tree, node=index) for index, node in nodes if node.edge.ends_turn and not node.ending
    ]
