"""Chains several tasks into one episode."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envgym.core.tasks import Task
from envgym.core.turns import Ending, Invalid
from envgym.errors import InvalidInput, sentence
from envgym.records import ResetResult, StepResult, step_result
from envgym.seeds import generator
from envgym.wrappers.base import AnyEnv, Wrapper, record_of, reset_record_of
from envgym.wrappers.chaining import continued_result, scored

_TOLERANCE = 1e-9


class Horizon(Wrapper):
    """Begins the next task where one has ended; the episode earns the mean of all.

    Which tasks follow is decided by the content of the first, so that episodes of one task stay comparable; they are of
    its split. With `all_or_nothing` only the last turn pays: 1 where every task reached the optimum, else 0. A
    truncated or invalid task is the last.

    Source: 2510.08189, composed queries; here the tasks follow one another and do not depend on one another's answers.
    """

    def __init__(self, env: AnyEnv, num_tasks: int = 3, *, all_or_nothing: bool = False) -> None:
        """Wrap `env`. Raises: InvalidInput: `num_tasks` is below 1."""
        super().__init__(env)
        if num_tasks < 1:
            raise InvalidInput(sentence("num_tasks", "be at least 1", num_tasks, where="Horizon", do="pass e.g. 3"))
        self.num_tasks, self.all_or_nothing = num_tasks, all_or_nothing
        self._turns, self._done, self._earned, self._num_solved = 0, 0, 0.0, 0
        self._first: Task | None = None

    @property
    def task(self) -> Task:
        """The first task of the running episode, which decides all others."""
        return self.unwrapped.task if self._first is None else self._first

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Start an episode with its first task."""
        self._first = None
        return super().reset(seed=seed, options=options)

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin a chain."""
        self._turns, self._done, self._earned, self._num_solved = 0, 0, 0.0, 0
        self._first = reset_record_of(result).task
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn; where it ends a task, begin the next."""
        record = replace(record_of(self.env.step(action)), turn=self._turns)
        self._turns += 1
        if isinstance(record.reward, Invalid):
            return step_result(record)
        self._earned += record.reward.value
        has_ended = record.ending is Ending.TERMINATED
        self._done += has_ended
        self._num_solved += has_ended and self._earned >= self.unwrapped.optimum - _TOLERANCE
        value = record.reward.value / self.num_tasks
        if self.all_or_nothing:
            value = float(self._num_solved == self.num_tasks)
        reward = scored(record.reward, value)
        if not has_ended or self._done == self.num_tasks:
            return step_result(replace(record, reward=reward))
        self._earned = 0.0
        begun = self.env.reset(options={"task": self._next_task()})
        return continued_result(record, reward, f"Task {self._done + 1} of {self.num_tasks}:", begun)

    def _next_task(self) -> Task:
        """Return the task that the first one puts at this place of the chain."""
        split, size = self.task.split, self.tasks.size(self.task.split)
        draw = generator("horizon", self.task.key, self._done)
        return self.tasks.task(split, int(draw.integers(size if size is not None else 2**31)))
