"""Wrappers that play several episodes of their env as one: further attempts at a task, or several tasks in a row."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgym.core.json_types import canonical
from envgym.core.messages import Action, Message, Observation, Role, text_of
from envgym.core.tasks import Task
from envgym.core.turns import Ending, Invalid, Reward, reaches
from envgym.errors import InvalidInput
from envgym.parsing import parse_action
from envgym.records import ResetResult, StepRecord, StepResult, step_result
from envgym.seeds import generator
from envgym.wrappers.base import AnyEnv, Wrapper, record_of, reset_record_of

FEEDBACK = "That is not right. Try again."
REPEATED = "You said that before. Try again."
MAX_DRAWS = 100
"""Tasks drawn for one place of a chain, and as many that are then taken in order."""
_MAX_ORACLE_TURNS = 200
_INTEGER = re.compile(r"(?<![\d.,])\d+(?![\d]|[.,]\d)")
"""An integer that is no part of a number with a point or a comma."""


class TryAgain(Wrapper):
    """Restarts the task when its episode ends below the optimum, as long as attempts are left.

    The episode earns its best attempt, where attempt k (from 0) counts discount^k (1 - repeat_penalty)^r of what it
    earned, after r attempts whose actions were all those of an earlier attempt. Every turn pays the difference to what
    the episode earned so far. A truncated or invalid attempt is the last.

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
            repeat_penalty: Share of all that follows that is lost for an attempt with the actions of an earlier one.
            show_task: Show the first observation again with each attempt; a single question need not be repeated.

        Raises: InvalidInput: `attempts` is below 1, or a share outside [0, 1].
        """
        super().__init__(env)
        InvalidInput.unless(attempts >= 1, "attempts", "be at least 1", attempts, where="TryAgain", do="pass e.g. 3")
        for name, share in (("discount", discount), ("repeat_penalty", repeat_penalty)):
            InvalidInput.unless(0.0 <= share <= 1.0, name, "lie in [0, 1]", share, where="TryAgain", do="pass e.g. 0.5")
        self.attempts, self.show_task = attempts, show_task
        self.discount, self.repeat_penalty = discount, repeat_penalty
        self._start_episode()

    def _start_episode(self) -> None:
        self._attempt, self._weight = 0, 1.0
        self._earned, self._paid, self._best = 0.0, 0.0, -math.inf
        self._actions: tuple[_ActionKey, ...] = ()
        self._earlier: frozenset[tuple[_ActionKey, ...]] = frozenset()

    def on_reset(self, result: ResetResult) -> ResetResult:
        self._start_episode()
        return result

    def on_step(self, action: str) -> StepResult:
        record = self._paying(record_of(self.env.step(action)))
        has_failed = record.ending is Ending.TERMINATED and not reaches(self._earned, self.unwrapped.optimum)
        if not has_failed or self._attempt + 1 >= self.attempts:
            return step_result(record)
        is_repeated = self._actions in self._earlier
        self._earlier |= {self._actions}
        self._weight *= self.discount * (1 - self.repeat_penalty * is_repeated)
        self._attempt, self._earned, self._best, self._actions = self._attempt + 1, 0.0, self._paid, ()
        begun = self.env.reset(options={"task": self.task})
        feedback = f"{REPEATED if is_repeated else FEEDBACK} Attempts left: {self.attempts - self._attempt}."
        return _continue_episode(record, record.reward, feedback, begun if self.show_task else None)

    def _paying(self, record: StepRecord) -> StepRecord:
        """Count the turn; after the first attempt, pay what max(best attempt before, this one so far) has gained."""
        record = replace(record, turn=self._turn)
        self._actions = (*self._actions, _action_key(record.action))
        if isinstance(record.reward, Invalid):
            return record
        self._earned += record.reward.value
        value = record.reward.value
        if self._attempt:
            value = max(self._best, self._weight * self._earned) - self._paid
        self._paid += value
        return replace(record, reward=replace(record.reward, value=value))


_ActionKey = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Content, calls and unread calls of an action: what two actions have in common if they are the same."""


def _action_key(action: Action) -> _ActionKey:
    calls = tuple((call.name, canonical(call.arguments)) for call in action.tool_calls)
    return action.content, calls, action.malformed


class Horizon(Wrapper):
    """Begins the next task where one has ended; the episode earns the mean of all.

    Which tasks follow is decided by the content of the first, so that episodes of one task stay comparable; they are of
    its split, and no two tasks of a chain have the same content. With `all_or_nothing` only the last turn pays: 1 where
    every task reached the optimum, else 0. A truncated or invalid task is the last.

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
        self._used: frozenset[str] = frozenset()
        """Keys of the tasks of the running chain."""

    @property
    def task(self) -> Task:
        """The first task of the running episode, which decides all others."""
        return self.unwrapped.task if self._first is None else self._first

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        self._first = None
        return super().reset(seed=seed, options=options)

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin a chain. Raises: InvalidInput: the split has fewer tasks than a chain."""
        self._done, self._earned, self._num_solved = 0, 0.0, 0
        self._first = reset_record_of(result).task
        self._used = frozenset({self._first.key})
        size = self.tasks.size(self._first.split)
        if size is not None and size < self.num_tasks:
            raise self._too_few(size)
        return result

    def on_step(self, action: str) -> StepResult:
        record = replace(record_of(self.env.step(action)), turn=self._turn)
        if isinstance(record.reward, Invalid):
            return step_result(record)
        self._earned += record.reward.value
        has_ended = record.ending is Ending.TERMINATED
        self._done += has_ended
        self._num_solved += has_ended and reaches(self._earned, self.unwrapped.optimum)
        value = record.reward.value / self.num_tasks
        if self.all_or_nothing:
            value = float(self._num_solved == self.num_tasks)
        reward = replace(record.reward, value=value)
        if not has_ended or self._done == self.num_tasks:
            return step_result(replace(record, reward=reward))
        self._earned = 0.0
        return _continue_episode(record, reward, f"Task {self._done + 1} of {self.num_tasks}:", self._begin_next())

    def _begin_next(self) -> ResetResult:
        """Begin the next task. Raises: InvalidInput: the split has no further task for the chain."""
        for task in self._candidates():
            if task.key not in self._used and (begun := self._try_task(task)) is not None:
                self._used |= {task.key}
                return begun
        raise self._too_few(self._done)

    def _too_few(self, count: int) -> InvalidInput:
        must = f"hold {self.num_tasks} different tasks that fit a chain"
        do, where = "lower num_tasks, or use a larger source", f"{type(self).__name__}, chain of task {self.task.id}"
        return InvalidInput.of(f"split {self.task.split}", must, count, where=where, do=do)

    def _try_task(self, task: Task) -> ResetResult | None:
        return self.env.reset(options={"task": task})

    def _candidates(self) -> Iterator[Task]:
        """Yield the tasks that may stand at this place of the chain: drawn ones, then those after the last draw."""
        split, size = self.task.split, self.tasks.size(self.task.split)
        draw, index = generator("horizon", self.task.key, self._done), 0
        for _ in range(MAX_DRAWS):
            index = int(draw.integers(size if size is not None else 2**31))
            yield self.tasks.task(split, index)
        for offset in range(1, min(size, MAX_DRAWS) if size is not None else 1):
            yield self.tasks.task(split, (index + offset) % (size or 1))


class DependentHorizon(Horizon):
    """Begins the next task where one has ended, with a number that follows from the answer to the one before.

    The first positive integer x in the next task's words, none that is part of a decimal number, becomes a variable:
    "Using the result [answer1] from the previous calculation, [variable2] = [answer1] - 5." says that it is 5 less than
    the right answer before, so that who was wrong there goes on with another task. Tasks without such a number follow
    as they are. The right answer is the last message of the env's oracle, played on a fork, and must be an integer.
    Tasks with any other answer stand only at the end of a chain; a chain that begins with one is refused.

    Source: 2510.08189, composed queries; the authors' code lets a model choose the number, and asks for all answers in
    one message, of which all must be right (`all_or_nothing`); here they follow one another.
    """

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin a chain. Raises: NoOracle: the env has none. InvalidInput: the answer is no integer."""
        begun = super().on_reset(result)
        answer = last_message(self.env) if self.num_tasks > 1 else "0"
        self._answer = read_integer(answer)
        if self._answer is None:
            what, where = "answer of the first task of a chain", f"DependentHorizon, task {self.task.id}"
            do = "use Horizon, or an environment whose answers are integers"
            raise InvalidInput.of(what, "be an integer", answer, where=where, do=do)
        return begun

    def _try_task(self, task: Task) -> ResetResult | None:
        before, begun = self._answer, self.env.reset(options={"task": task})
        if self._done < self.num_tasks - 1:
            answer = read_integer(last_message(self.env))
            if answer is None:
                return None
            self._answer = answer
        record = reset_record_of(begun)
        if before is None or not record.observation.messages:
            return begun
        *others, last = record.observation.messages
        text = depend(text_of(last), before, number=self._done + 1)
        observation = Observation.of((*others, Message(role=last.role, content=text, name=last.name)))
        return ResetResult(observation, {**begun.info, "envgym": replace(record, observation=observation)})


def last_message(env: AnyEnv) -> str:
    """Return the final answer of an env's oracle, played on a fork if it calls tools before.

    Raises: NoOracle: the env has none. InvalidInput: the oracle does not come to an answer.
    """
    action = _parsed(env.oracle())
    if not action.tool_calls:
        return action.content
    fork = env.fork()
    try:
        for _ in range(_MAX_ORACLE_TURNS):
            if not action.tool_calls:
                return action.content
            result = fork.step(action)
            if result.terminated or result.truncated:
                break
            action = _parsed(fork.oracle())
    finally:
        fork.close()
    do = "use an environment whose oracle answers in plain text"
    raise InvalidInput.of("oracle", "end with an answer", "a call", where=f"task {env.task.id}", do=do)


def _parsed(action: str) -> Action:
    return action if isinstance(action, Action) else parse_action(action)


_WHOLE = re.compile(
    r"(?:.*(?:\\boxed\{|<answer>|####))?[\s$]*(-?\d{1,3}(?:,\d{3})+|-?\d+)[\s$]*(?:\}|</answer>)?[\s$.]*", re.DOTALL
)


def read_integer(answer: str) -> int | None:
    """Return the integer that an answer is, bare or inside the marks of a final answer; None: it is none."""
    match = _WHOLE.fullmatch(answer)
    return None if match is None else int(match[1].replace(",", ""))


def depend(text: str, answer: int, *, number: int) -> str:
    """Return problem `number` (from 2) of a chain, in which a number is given by the right answer to the one before."""
    number_match = next((match for match in _INTEGER.finditer(text) if int(match[0]) > 0), None)
    if number_match is None:
        return text
    difference = int(number_match[0]) - answer
    earlier, variable = f"[answer{number - 1}]", f"[variable{number}]"
    value = f"{earlier} {'-' if difference < 0 else '+'} {abs(difference)}"
    definition = f"Using the result {earlier} from the previous calculation, {variable} = {value}."
    return f"{definition} {text[: number_match.start()]}{variable}{text[number_match.end() :]}"


def _continue_episode(last: StepRecord, reward: Reward, message: str, beginning: ResetResult | None) -> StepResult:
    """Return the last turn of an episode as one that goes on: `message` and the next beginning follow its own text."""
    messages: Sequence[Message] = (*last.observation.messages, Message(role=Role.USER, content=message))
    if beginning is not None:
        messages = (*messages, *reset_record_of(beginning).observation.messages)
    return step_result(replace(last, observation=Observation.of(messages), reward=reward, ending=None))
