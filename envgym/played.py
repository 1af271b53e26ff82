"""An episode that another program plays: its loop, its model, its protocol; the env is stepped here and nowhere else.

Doors to other projects call these methods from any thread; one lock serves them one after another.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Observation, ToolCall
from envgym.core.tasks import Split, Task
from envgym.core.turns import ZERO, Ending, Invalid, Reward, Scored, total
from envgym.errors import InfrastructureError, InvalidInput, ResetNeeded
from envgym.records import StepRecord, ending_of, env_failure, failed_record, first_messages
from envgym.runtime.error_log import log_error
from envgym.tools import ToolSpec
from envgym.wrappers import AnyEnv
from envgym.wrappers.base import record_of, reset_record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a player is shown before the first turn; the answer of the task is not part of it."""

    messages: tuple[Message, ...]
    """The standing instructions as a system message, if the env has any, and the first observation."""
    tools: tuple[ToolSpec, ...]
    task_id: str
    split: Split
    index: int | None
    """None: the task was drawn with the seed, or passed as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """What one turn gave."""

    observation: Observation
    """The reply of the env: its text, and the messages that it is made of."""
    reward: Reward
    """Of this turn."""
    total: Reward
    """Of all turns so far."""
    ending: Ending | None
    """None while the episode goes on."""
    tool_calls: int
    tool_errors: int
    """Calls of this turn that were refused, that raised, or that could not be read."""
    error: str | None = None
    """For an `ERROR_*` ending: what failed."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.observation.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """An episode as it stands: its outcome once it has ended."""

    reward: Reward
    """The sum over the turns, with components; of an episode that has not ended, the value so far."""
    ending: Ending | None
    """None while the episode goes on."""
    num_turns: int
    error: str | None = None
    """For an `ERROR_*` ending: what failed."""


class EpisodeOver(InvalidInput):
    """A turn was played after the end of its episode."""


_NO_TURN = EpisodeResult(reward=ZERO, ending=None, num_turns=0)


class PlayedEpisode:
    """One env, played for another program's loop; `open` begins an episode, and may be called again for the next."""

    def __init__(self, env: AnyEnv) -> None:
        """Take an env; `close` closes it."""
        self._env = env
        self._lock = Lock()
        self._is_closed = False
        self._so_far: EpisodeResult | None = None
        """None: no episode was opened."""

    @property
    def name(self) -> str:
        """The id of the env."""
        return self._env.name

    def open(
        self,
        *,
        seed: int | None = None,
        split: Split | str | None = None,
        index: int | None = None,
        task: Task | None = None,
    ) -> Opening:
        """Begin an episode.

        Args:
            seed: of the episode; None: the generator of the env goes on.
            split: the split of the task; None: train.
            index: number of the task in its split; None: one is drawn.
            task: a task itself, in place of split and index.

        Raises: InvalidInput: no such split or index, or a bad seed. ResetNeeded: the env is closed.
            InfrastructureError: the env could not be set up; the reward of `result` is then invalid.
        """
        choice = {"split": split, "index": index, "task": task}
        options: dict[str, Any] = {name: value for name, value in choice.items() if value is not None}
        with self._lock:
            self._check_not_closed("open")
            self._so_far = None
            try:
                record = reset_record_of(self._env.reset(seed=seed, options=options))
            except (InvalidInput, ResetNeeded):
                raise
            except Exception as error:
                failure = _log_failure("reset", error)
                invalid = Invalid(cause=ending_of(failure), reason=str(failure))
                self._so_far = EpisodeResult(reward=invalid, ending=invalid.cause, num_turns=0, error=str(failure))
                if failure is error:
                    raise
                raise failure from error
            self._so_far = _NO_TURN
        return Opening(
            messages=first_messages(record, record.system_prompt),
            tools=record.tools,
            task_id=record.task.id,
            split=record.task.split,
            index=index,
        )

    def say(self, text: str) -> PlayedTurn:
        """Play a turn of plain text, which is not read for tool calls. Raises: as `act`."""
        return self.act(Action(text))

    def call(self, name: str, arguments: JsonObject, id: str | None = None) -> PlayedTurn:
        """Play a turn that calls one tool; a call that cannot be run is answered with advice.

        Raises: as `act`. InvalidInput: the arguments have no form in JSON.
        """
        return self.act(call_action([ToolCall(name=name, arguments=arguments, id=id)]))

    def act(self, action: str) -> PlayedTurn:
        """Play a turn. A plain `str` is read for tool calls, an `Action` is played as it is.

        Whatever the env or a wrapper raises ends the episode with an invalid reward.

        Raises: EpisodeOver: the episode has ended. ResetNeeded: none was opened, or the env is closed.
            InvalidInput: the action is no string.
        """
        do = "pass text or an Action"
        InvalidInput.unless(isinstance(action, str), "action", "be a str", action, where=self.name, do=do)
        with self._lock:
            self._check_not_closed("act")
            before = self._check_runs()
            record = self._step(action, before.num_turns)
            paid = total((before.reward, record.reward))
            self._so_far = EpisodeResult(
                reward=paid, ending=record.ending, num_turns=before.num_turns + 1, error=record.error
            )
        return PlayedTurn(
            observation=record.observation,
            reward=record.reward,
            total=paid,
            ending=record.ending,
            tool_calls=record.tool_calls,
            tool_errors=record.tool_errors,
            error=record.error,
        )

    def oracle(self) -> str:
        """Return the best next action. Raises: NoOracle: the env has none. EpisodeOver, ResetNeeded: as `act`."""
        with self._lock:
            self._check_not_closed("oracle")
            self._check_runs()
            return self._env.oracle()

    def result(self) -> EpisodeResult:
        """Return the reward of the turns that have ended, and the ending; a turn that still runs is not waited for.

        Raises: ResetNeeded: none was opened.
        """
        return self._check_opened("result")

    def close(self) -> None:
        """Close the env; may be called twice, and `result` can still be read."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._env.close()

    def _step(self, action: str, turn: int) -> StepRecord:
        try:
            return record_of(self._env.step(action))
        except Exception as error:  # noqa: BLE001  # of a wrapper; an env's own is in its record
            failure = _log_failure("step", error)
            failed = action if isinstance(action, Action) else Action(action)
            return failed_record(turn, failed, ending_of(failure), str(failure))

    def _check_not_closed(self, what: str) -> None:
        if self._is_closed:
            raise ResetNeeded.of(what, "be called before close", "a closed env", where=self.name, do="make a new one")

    def _check_opened(self, what: str) -> EpisodeResult:
        so_far = self._so_far
        if so_far is None:
            raise ResetNeeded.of(what, "follow open", "no episode", where=self.name, do="call open first")
        return so_far

    def _check_runs(self) -> EpisodeResult:
        so_far = self._check_opened("a turn")
        if so_far.ending is not None:
            raise EpisodeOver(f"The episode is over: {outcome(so_far)}.")
        return so_far


def call_action(calls: Sequence[ToolCall]) -> Action:
    """Return the action that calls tools and has no other text.

    Raises: InvalidInput: the arguments of a call have no form in JSON.
    """
    text = "\n".join(f"<tool_call>\n{_written(call)}\n</tool_call>" for call in calls)
    return Action(text, content="", tool_calls=calls)


def _written(call: ToolCall) -> str:
    try:
        return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        do = "pass a mapping of names to JSON values"
        raise InvalidInput.of("arguments", "have a form in JSON", str(error), where=call.name, do=do) from error


def _log_failure(method: str, error: Exception) -> InfrastructureError:
    failure = env_failure(method, error)
    log_error(error, f"{failure}; the reward of the episode is invalid")
    return failure


def outcome(result: EpisodeResult) -> str:
    """Write the outcome of an episode in a few words, as in "TERMINATED, reward 1"."""
    reward = result.reward
    paid = f"reward {reward.value:g}" if isinstance(reward, Scored) else f"no valid reward ({reward.reason})"
    return f"{result.ending or 'not ended'}, {paid}"
