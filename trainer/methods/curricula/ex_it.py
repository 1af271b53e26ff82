"""ExIt: states that the policy met become tasks, drawn by how much its results differed there."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field, PrivateAttr

from envgym.core.trajectory import StartState, Trajectory
from envgym.core.turns import is_success
from envgym.runs.directory import read_object
from envgym.runs.files import write_json
from envgym.seeds import generator
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.base import load_trees, save_trees
from envgym.trainer.methods.curricula.r3 import states_of
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, StepOutcome, TaskRequest

_STATES = "states.json"


class MetState(NamedTuple):
    """A state in the buffer."""

    env: str
    task: int
    """Index of its task."""
    start: StartState
    score: float
    """Variance of the results from it, or from where its episode began."""


class ExIt(GroupSource):
    """With probability p ask for a group from a state of the buffer, drawn by exp(κ S); else draw as `uniform` does.

    After a group, S of the state that it began at becomes the variance of its rewards (over n, and clipped to [0, 1]).
    One of its episodes, the first valid one that is not solved, leaves the states that it passed in the buffer, with
    that S; the states of one that is solved get 0. Beyond `capacity` the least S leave, of them the oldest. States are
    asked for once the buffer holds `least`.

    Source: 2509.04575, from its abstract and two re-implementations. p, κ and the sizes are ours; a state is that after
    a turn; the further turns are paid by the env, not by what they improve; no instruction to diverge, no diversity.
    """

    needs_start_states: ClassVar[bool] = True
    probability: float = Field(default=0.5, ge=0, le=1)
    """Probability p of a group from a state of the buffer."""
    kappa: float = 1.0
    """κ: how much states of a large score are preferred."""
    least: int = Field(default=8, ge=1)
    """States in the buffer before any is asked for."""
    capacity: int = Field(default=256, ge=1)
    """Most states in the buffer."""
    solved_at: float = 1.0
    """Reward from which an episode is solved."""
    _states: list[MetState] = PrivateAttr(default_factory=list)
    """Oldest first."""

    def probabilities(self) -> list[float]:
        """Return the probability of every state of the buffer."""
        scores = self.kappa * np.array([state.score for state in self._states])
        weights = np.exp(scores - scores.max())
        return [float(share) for share in weights / weights.sum()]

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        requests = Uniform().choose(context)
        if len(self._states) < self.least:
            return requests
        draws, shares = generator(context.seed, "ex_it", context.step), self.probabilities()
        return [self._from_state(request, shares, draws) for request in requests]

    def _from_state(self, request: TaskRequest, shares: list[float], draws: np.random.Generator) -> TaskRequest:
        is_taken, place = draws.random() < self.probability, draws.choice(len(shares), p=shares)
        state = self._states[place]
        return replace(request, env=state.env, index=state.task, start=state.start) if is_taken else request

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Score the states that were asked for, and take in those that were met."""
        for request, group in outcome.pairs:
            rewards = episode_rewards(group)
            if rewards:
                self._take(request, group.valid, variance(rewards))
        scores = [state.score for state in self._states]
        return {"states": float(len(scores)), "mean_score": statistics.fmean(scores) if scores else 0.0}

    def _take(self, request: TaskRequest, episodes: Sequence[Trajectory], score: float) -> None:
        start = request.start
        if start is not None:
            key = (start.tree.id, start.node)
            same = [(state.start.tree.id, state.start.node) == key for state in self._states]
            self._states = [
                state._replace(score=score) if match else state for state, match in zip(self._states, same, strict=True)
            ]
        unsolved = [episode for episode in episodes if not is_success(episode.reward, self.solved_at)]
        episode = (unsolved or list(episodes))[0]
        new = states_of(episode)[len(start.turns) if start is not None else 0 :]
        kept_score = score if unsolved else 0.0
        self._states += [MetState(request.env, request.index, state, kept_score) for state in new]
        order = sorted(range(len(self._states)), key=lambda place: (self._states[place].score, place))
        leaving = set(order[: max(len(order) - self.capacity, 0)])
        self._states = [state for place, state in enumerate(self._states) if place not in leaving]

    def save(self, folder: Path) -> None:
        save_trees(folder, [state.start.tree for state in self._states])
        rows = [[item.env, item.task, item.start.tree.id, item.start.node, item.score] for item in self._states]
        write_json(folder / _STATES, {"states": rows})

    def load(self, folder: Path) -> None:
        trees = load_trees(folder)
        self._states = [
            MetState(env, index, StartState(tree=trees[tree], node=node), score)
            for env, index, tree, node, score in read_object(folder / _STATES)["states"]
        ]


def variance(rewards: Sequence[float]) -> float:
    """Return the variance of rewards over n, clipped to [0, 1]; 0 for a single one."""
    return min(statistics.pvariance(rewards), 1.0)
