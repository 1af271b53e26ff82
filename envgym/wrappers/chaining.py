"""Wrappers that play several episodes of their env as one: further attempts at a task, or several tasks in a row."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgym.core.messages import Message, Observation, Role, text_of
from envgym.core.tasks import Task
from envgym.core.turns import Ending, Invalid, Reward
from envgym.errors import InvalidInput
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.seeds import generator
from envgym.wrappers.base import AnyEnv, Wrapper, record_of, reset_record_of

FEEDBACK = "That is not right. Try again."
REPEATED = "You said that before. Try again."
_TOLERANCE = 1e-9
_INTEGER = re.compile(r"(?<![\d.,])\d+(?![\d]|[.,]\d)")
"""An integer that is no part of a number with a point or a comma."""


class TryAgain(Wrapper):
    """Restarts the task when its episode ends below the optimum, as long as attempts are left.

    The episode earns its best attempt, where attempt k (from 0) counts discount^k (1 - repeat_penalty)^r of what it
    earned, after r attempts that ended with an action said before. A truncated or invalid attempt is the last.

    Source: 2507.14295, unary feedback as observation; here for every env, also where an attempt takes several turns.
    """

    def __init__(
        self,
        env: AnyEnv,
        attempts: int = 3,
        *,
        discount: float = 0.5,
        repeat_penalty: float = 0.0,
        show_task: bool = True,
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            attempts: How often the task may be tried.
            discount: What each further attempt is worth, compared with the one before.
            repeat_penalty: Share of all that follows that is lost for ending an attempt with an action said before.
            show_task: Show the first observation again with each attempt; a single question need not be repeated.

        Raises: InvalidInput: `attempts` is below 1, or a share outside [0, 1].
        """
        super().__init__(env)
        InvalidInput.unless(attempts >= 1, "attempts", "be at least 1", attempts, where="TryAgain", do="pass e.g. 3")
        for name, share in (("discount", discount), ("repeat_penalty", repeat_penalty)):
            InvalidInput.unless(0.0 <= share <= 1.0, name, "lie in [0, 1]", share, where="TryAgain", do="pass e.g. 0.5")
        self.attempts, self.show_task = attempts, show_task
        self.discount, self.repeat_penalty = discount, repeat_penalty
        self._attempt, self._weight = 0, 1.0
        self._earned, self._paid = 0.0, 0.0
        self._said: frozenset[str] = frozenset()

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin the first attempt."""
        self._attempt, self._weight = 0, 1.0
        self._earned, self._paid = 0.0, 0.0
        self._said = frozenset()
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn; where it ends an attempt in vain, begin the next."""
        record = self._paying(record_of(self.env.step(action)))
        has_failed = record.ending is Ending.TERMINATED and self._earned < self.unwrapped.optimum - _TOLERANCE
        if not has_failed or self._attempt + 1 >= self.attempts:
            return step_result(record)
        is_repeated = record.action.content in self._said
        self._said |= {record.action.content}
        self._weight *= self.discount * (1 - self.repeat_penalty * is_repeated)
        self._attempt, self._earned = self._attempt + 1, 0.0
        begun = self.env.reset(options={"task": self.task})
        said = f"{REPEATED if is_repeated else FEEDBACK} Attempts left: {self.attempts - self._attempt}."
        return _continue_episode(record, record.reward, said, begun if self.show_task else None)

    def _paying(self, record: StepRecord) -> StepRecord:
        """Count the turn, and pay for the first attempt as the env does, for others what is better than all before."""
        record = replace(record, turn=self._turn)
        if isinstance(record.reward, Invalid):
            return record
        self._earned += record.reward.value
        earned = self._weight * self._earned
        value = earned - self._paid if self._attempt == 0 else max(0.0, earned - self._paid)
        self._paid += value
        return replace(record, reward=replace(record.reward, value=value))


class Horizon(Wrapper):
    """Begins the next task where one has ended; the episode earns the mean of all.

    Which tasks follow is decided by the content of the first, so that episodes of one task stay comparable; they are of
    its split. With `all_or_nothing` only the last turn pays: 1 where every task reached the optimum, else 0. A
    truncated or invalid task is the last.

    Source: 2510.08189, composed queries; here the tasks follow one another and do not depend on one another's answers.
    """

    def __init__(self, env: AnyEnv, num_tasks: int = 3, *, all_or_nothing: bool = False) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            num_tasks: Tasks of one episode.
            all_or_nothing: Pay 1 at the last turn where every task reached the optimum, and 0 otherwise.

        Raises: InvalidInput: `num_tasks` is below 1.
        """
        super().__init__(env)
        InvalidInput.unless(num_tasks >= 1, "num_tasks", "be at least 1", num_tasks, where="Horizon", do="pass e.g. 3")
        self.num_tasks, self.all_or_nothing = num_tasks, all_or_nothing
        self._done, self._earned, self._num_solved = 0, 0.0, 0
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
        self._done, self._earned, self._num_solved = 0, 0.0, 0
        self._first = reset_record_of(result).task
        return result

    def on_step(self, action: str) -> StepResult:
        """Play the turn; where it ends a task, begin the next."""
        record = replace(record_of(self.env.step(action)), turn=self._turn)
        if isinstance(record.reward, Invalid):
            return step_result(record)
        self._earned += record.reward.value
        has_ended = record.ending is Ending.TERMINATED
        self._done += has_ended
        self._num_solved += has_ended and self._earned >= self.unwrapped.optimum - _TOLERANCE
        value = record.reward.value / self.num_tasks
        if self.all_or_nothing:
            value = float(self._num_solved == self.num_tasks)
        reward = replace(record.reward, value=value)
        if not has_ended or self._done == self.num_tasks:
            return step_result(replace(record, reward=reward))
        self._earned = 0.0
        return _continue_episode(record, reward, f"Task {self._done + 1} of {self.num_tasks}:", self._begin_next())

    def _begin_next(self) -> ResetResult:
        """Begin the next task."""
        return self.env.reset(options={"task": self._next_task()})

    def _next_task(self) -> Task:
        """Return the task that the first one puts at this place of the chain."""
        split, size = self.task.split, self.tasks.size(self.task.split)
        draw = generator("horizon", self.task.key, self._done)
        return self.tasks.task(split, int(draw.integers(size if size is not None else 2**31)))


class DependentHorizon(Horizon):
    """Begins the next task where one has ended, with a number that follows from the answer to the one before.

    The first positive integer x in the next task's words, none that is part of a decimal number, becomes a variable:
    "Using the result [answer1] from the previous calculation, [variable2] = [answer1] - 5." says that it is 5 less than
    the right answer before, so that who was wrong there goes on with another task. Tasks without such a number follow
    as they are. The right answer is the last integer of what the env's oracle says.

    Source: 2510.08189, composed queries; the authors' code lets a model choose the number, and asks for all answers in
    one message, of which all must be right (`all_or_nothing`); here they follow one another.
    """

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin a chain. Raises: NoOracle: the env has none."""
        begun = super().on_reset(result)
        self._answer = _last_integer(self.env.oracle())
        return begun

    def _begin_next(self) -> ResetResult:
        before, begun = self._answer, super()._begin_next()
        self._answer = _last_integer(self.env.oracle())
        record = reset_record_of(begun)
        if before is None or not record.observation.messages:
            return begun
        *others, last = record.observation.messages
        text = depend(text_of(last), before, number=self._done + 1)
        observation = Observation.of((*others, Message(role=last.role, content=text, name=last.name)))
        return ResetResult(observation, {**begun.info, "envgym": replace(record, observation=observation)})


def depend(text: str, answer: int, *, number: int) -> str:
    """Return problem `number` (from 2) of a chain, in which a number is given by the right answer to the one before."""
    found = next((match for match in _INTEGER.finditer(text) if int(match[0]) > 0), None)
    if found is None:
        return text
    difference = int(found[0]) - answer
    earlier, variable = f"[answer{number - 1}]", f"[variable{number}]"
    value = f"{earlier} {'-' if difference < 0 else '+'} {abs(difference)}"
    given = f"Using the result {earlier} from the previous calculation, {variable} = {value}."
    return f"{given} {text[: found.start()]}{variable}{text[found.end() :]}"


def _last_integer(text: str) -> int | None:
    found = re.findall(r"-?\d+", text)
    return int(found[-1]) if found else None


def _continue_episode(last: StepRecord, reward: Reward, message: str, beginning: ResetResult | None) -> StepResult:
    """Return the last turn of an episode as one that goes on: `message` and the next beginning follow its own text."""
    messages: Sequence[Message] = (*last.observation.messages, Message(role=Role.USER, content=message))
    if beginning is not None:
        messages = (*messages, *reset_record_of(beginning).observation.messages)
    return step_result(replace(last, observation=Observation.of(messages), reward=reward, ending=None))
