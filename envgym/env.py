"""The environment contract: Gymnasium's `Env` over typed text, with `fork()`.

An author writes `begin(task)` and `respond(action)` and declares `tasks`; this base does the rest: it parses
plain strings, runs tools, turns failures into typed endings, counts turns, and copies itself.

At which moment which field exists:
    reset  -> observation, info["envgym"] is a `ResetRecord`
    step   -> observation, reward, terminated, truncated, info["envgym"] is a `StepRecord`
    an invalid turn returns reward 0.0 with truncated=True; the record is authoritative.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import gymnasium
import numpy as np

from envgym.core.endings import Ending
from envgym.core.messages import Action, Observation
from envgym.core.rewards import Invalid, Reward, Scored
from envgym.core.tasks import Split, Task, TaskSource
from envgym.errors import (
    EnvFailure,
    EnvgymError,
    ForkUnsupported,
    InfrastructureError,
    InvalidInput,
    PartyFailure,
    PolicyFailure,
    ResetNeeded,
    ToolInfraFailure,
    sentence,
)
from envgym.parsing import parse_action
from envgym.party import Party
from envgym.spaces import UnicodeText
from envgym.tools import Tool, ToolSpec, collect_tools, run_calls

StateT = TypeVar("StateT")

MAX_ACTION_CHARS = 200_000
"""Longer actions are answered with an observation, not run."""


class ForkCapability(StrEnum):
    """How an env can be copied in the middle of an episode."""

    STATE = "state"
    """By copying its state and generator."""
    REPLAY = "replay"
    """By running the recorded actions again and verifying that the observations agree."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an author's `respond` returns."""

    observation: str = ""
    reward: float | Reward = 0.0
    terminated: bool = False


class ResetResult(NamedTuple):
    """What `reset` returns, in Gymnasium's order."""

    observation: str
    info: dict[str, Any]


class StepResult(NamedTuple):
    """What `step` returns, in Gymnasium's order."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """The typed record of a reset."""

    task: Task
    observation: Observation
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The typed record of a turn."""

    turn: int
    """Index of the turn, from 0."""
    action: Action
    observation: Observation
    reward: Reward
    ending: Ending | None
    """None while the episode goes on."""
    tool_calls: int
    tool_errors: int
    error: str | None = None
    """For an `ERROR_*` ending: what failed."""


_ENDING_OF_ERROR: tuple[tuple[type[InfrastructureError], Ending], ...] = (
    (ToolInfraFailure, Ending.ERROR_TOOL_INFRA),
    (PartyFailure, Ending.ERROR_PARTY),
    (PolicyFailure, Ending.ERROR_POLICY),
    (EnvFailure, Ending.ERROR_ENV),
)


def ending_of(error: Exception) -> Ending:
    """Return the ending that records `error`; anything unforeseen is a fault of the env."""
    return next((ending for kind, ending in _ENDING_OF_ERROR if isinstance(error, kind)), Ending.ERROR_ENV)


class Env(gymnasium.Env[str, str], Generic[StateT]):
    """A text world: one task, one episode at a time."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012  # Gymnasium's own declaration
    system_prompt: ClassVar[str] = ""
    """Standing instructions, shown once as the system message."""
    fork_capability: ClassVar[ForkCapability] = ForkCapability.STATE
    blocking: ClassVar[bool] = False
    """True where `reset` or `step` may wait (process, network, disk): drivers then give the env a thread."""
    chance_score: ClassVar[float] = 0.0
    """Highest expected episode reward of an agent that does not read the task (empty, echo, random)."""
    optimum: ClassVar[float] = 1.0
    """Episode reward that the oracle reaches."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """Bounds of an episode's reward."""

    tasks: TaskSource
    state: StateT
    """All that an episode changes, in one copyable object."""

    def __init__(
        self,
        *,
        max_turns: int | None = None,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env without an episode; call `reset` next."""
        if max_turns is not None and max_turns < 1:
            raise InvalidInput(sentence("max_turns", "be at least 1", max_turns, where="make", do="pass 1 or None"))
        self.max_turns = max_turns
        self.parties = dict(parties or {})
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._task: Task | None = None
        self._turn = 0
        self._is_over = True
        self._last = Observation()

    # ---- what an author writes -------------------------------------------------------------------------------

    def begin(self, task: Task) -> str:
        """Set `self.state` for `task` and return the first observation; randomness comes from `self.np_random`."""
        raise TypeError(sentence(type(self).__name__, "define begin(task)", "none", where="Env", do="write it"))

    def respond(self, action: Action) -> Reply:
        """Answer an action that calls no tool."""
        raise TypeError(sentence(type(self).__name__, "define respond(action)", "none", where="Env", do="write it"))

    def oracle(self) -> str:
        """Return the best next action, read off the hidden state; used to check the env, never shown to an agent."""
        raise TypeError(sentence(type(self).__name__, "define oracle()", "none", where="Env", do="write it"))

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools by name; the default finds the methods marked with `@tool`."""
        return collect_tools(type(self))

    def tool_owner(self) -> object:
        """Return the object whose methods the tools are; the default is the env itself."""
        return self

    # ---- Gymnasium's contract --------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task of the running episode. Raises: ResetNeeded: before the first reset."""
        if self._task is None:
            raise ResetNeeded(sentence("task", "be read after reset", "no episode", where=self.name, do="call reset"))
        return self._task

    @property
    def name(self) -> str:
        """The id the env was made under, else its class name."""
        return self.spec.id if self.spec is not None else type(self).__name__

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:  # type: ignore[override]  # Gymnasium types options as dict and the result as a bare tuple
        """Start an episode. `options` may hold `task` (a Task) or `split` and `index`; the default is a random train task.

        Raises: InvalidInput: an unknown option or split. InfrastructureError: the world could not be set up.
        """
        super().reset(seed=seed)
        self._task = self._choose_task(dict(options or {}))
        self._turn, self._is_over = 0, False
        try:
            first = self.begin(self._task)
        except EnvgymError:
            self._is_over = True
            raise
        except Exception as error:
            self._is_over = True
            raise EnvFailure(_failure("reset", self.name, error)) from error
        self._last = first if isinstance(first, Observation) else Observation(first)
        record = ResetRecord(
            task=self._task,
            observation=self._last,
            system_prompt=self.system_prompt,
            tools=tuple(item.spec for item in self.toolset().values()),
            seed=seed,
        )
        return ResetResult(self._last, {"envgym": record})

    def _choose_task(self, options: dict[str, Any]) -> Task:
        task, split_name, index = options.pop("task", None), options.pop("split", None), options.pop("index", None)
        if options:
            raise InvalidInput(
                sentence("reset options", "be task, split or index", sorted(options), where=self.name, do="drop the others")
            )
        if task is not None:
            if not isinstance(task, Task):
                raise InvalidInput(
                    sentence("options['task']", "be a Task", task, where=self.name, do="take one from env.unwrapped.tasks")
                )
            return task
        split = Split.parse(split_name or Split.TRAIN, where=self.name)
        size = self.tasks.size(split)
        if size == 0:
            raise InvalidInput(sentence("split", "hold tasks", split.value, where=self.name, do="choose another split"))
        if index is None:
            index = int(self.np_random.integers(size if size is not None else 2**31))
        return self.tasks.task(split, int(index))

    def step(self, action: str) -> StepResult:
        """Play one turn. A plain `str` is parsed for tool calls; an `Action` is taken as it is.

        Raises: ResetNeeded: no episode is running. InvalidInput: the action is no string.
        """
        if self._is_over:
            raise ResetNeeded(
                sentence("step", "follow a reset", "an episode that is over", where=self.name, do="call reset first")
            )
        if not isinstance(action, str):
            raise InvalidInput(sentence("action", "be a str", action, where=self.name, do="pass text or an Action"))
        parsed = action if isinstance(action, Action) else parse_action(action)
        turn, self._turn = self._turn, self._turn + 1
        reply, calls, errors, ending, failed = self._answer(parsed)
        reward = reply.reward if isinstance(reply.reward, Scored | Invalid) else Scored(value=float(reply.reward))
        if ending is None and isinstance(reward, Invalid):
            ending, failed = reward.cause, reward.reason
        if ending is None and reply.terminated:
            ending = Ending.TERMINATED
        if ending is None and self.max_turns is not None and self._turn >= self.max_turns:
            ending = Ending.TRUNCATED_TURNS
        text = reply.observation
        self._last = text if isinstance(text, Observation) else Observation(text)
        self._is_over = ending is not None
        record = StepRecord(
            turn=turn,
            action=parsed,
            observation=self._last,
            reward=reward,
            ending=ending,
            tool_calls=calls,
            tool_errors=errors,
            error=failed,
        )
        return StepResult(
            self._last,
            reward.value if isinstance(reward, Scored) else 0.0,
            ending is Ending.TERMINATED,
            ending is not None and ending is not Ending.TERMINATED,
            {"envgym": record},
        )

    def _answer(self, action: Action) -> tuple[Reply, int, int, Ending | None, str | None]:
        """Return (reply, tool calls, tool errors, ending, error); a failure is a value here, never an exception."""
        try:
            if len(action) > MAX_ACTION_CHARS:
                text = f"Your message has {len(action)} characters; at most {MAX_ACTION_CHARS} are read."
                return Reply(observation=text), 0, 0, None, None
            if action.tool_calls or action.malformed:
                return self._use_tools(action)
            return self.respond(action), 0, 0, None, None
        except Exception as error:  # the one place where a failed turn becomes a record
            ending, text = ending_of(error), _failure("step", self.name, error)
            return Reply(reward=Invalid(cause=ending, reason=text)), 0, 0, ending, text

    def _use_tools(self, action: Action) -> tuple[Reply, int, int, Ending | None, str | None]:
        ran = run_calls(self.toolset(), self.tool_owner(), action)
        reply = self.after_tools(Observation.of(ran.messages))
        return reply, len(action.tool_calls), ran.num_errors, None, None

    def after_tools(self, observation: Observation) -> Reply:
        """Decide what follows a turn of tool calls; the default shows their results and goes on."""
        return Reply(observation=observation)

    def render(self) -> str:  # type: ignore[override]  # Gymnasium allows None
        """Return the last observation as text."""
        return str(self._last)

    # ---- copies ----------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        """Return an independent copy that continues from here: state, generator, turn count, task.

        Raises: ForkUnsupported: the env declares another capability than `STATE`. ResetNeeded: no episode yet.
        """
        if self.fork_capability is not ForkCapability.STATE:
            raise ForkUnsupported(
                sentence("fork", "be declared", self.fork_capability.value, where=self.name, do="use replay or a chain")
            )
        if self._task is None:
            raise ResetNeeded(sentence("fork", "follow a reset", "no episode", where=self.name, do="call reset first"))
        twin = copy.copy(self)
        twin.state = self.fork_state()
        twin.np_random = _copy_generator(self.np_random)
        return twin

    def fork_state(self) -> StateT:
        """Return an independent copy of the state; override where something cheaper than a deep copy is exact."""
        return copy.deepcopy(self.state)


def _copy_generator(generator: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues with the same numbers (four times faster than a deep copy)."""
    bits = type(generator.bit_generator)()
    bits.state = generator.bit_generator.state
    return np.random.Generator(bits)


def _failure(what: str, name: str, error: Exception) -> str:
    return f"{what} of {name} failed: {type(error).__name__}: {error}"

