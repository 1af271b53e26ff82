"""The environment contract: Gymnasium's `Env` over typed text, with `fork()`.

An author writes `begin(task)` and `respond(action)` and declares `tasks`; this base does the rest: it parses
plain strings, runs tools, turns failures into typed endings, counts turns, and copies itself.

At which moment which field exists:
    reset  -> observation, info["envgym"] is a `ResetRecord`
    step   -> observation, reward, terminated, truncated, info["envgym"] is a `StepRecord`
    an invalid turn returns reward 0.0 with truncated=True; the record is authoritative.
"""

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from envgym.core.messages import Action, Observation
from envgym.core.spaces import UnicodeText
from envgym.core.tasks import Split, Task, TaskSource
from envgym.core.turns import ZERO, Ending, Invalid, Reward, Scored, as_number
from envgym.errors import EnvFailure, EnvgymError, ForkUnsupported, InvalidInput, ResetNeeded, sentence
from envgym.forking import Recording, copy_generator, replay, restore_generator
from envgym.parsing import parse_action
from envgym.party import Party
from envgym.records import (
    Reply,
    ResetRecord,
    ResetResult,
    StepRecord,
    StepResult,
    ending_of,
    failed_record,
    step_result,
)
from envgym.runtime.error_log import log_error
from envgym.seeds import read_seed
from envgym.tools import ErrorTypes, Tool, collect_tools, run_calls

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


class NoOracle(TypeError):
    """The env does not know the best next action."""


class AsyncCalls(Protocol):
    """What an env does without blocking the event loop, one call at a time."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Start an episode, as `Env.reset`."""
        ...

    async def step(self, action: str) -> StepResult:
        """Play one turn, as `Env.step`; the episode of a call that was cancelled does not go on."""
        ...

    async def fork(self) -> Any:  # an env, or a wrapper around one
        """Return an independent copy, as `Env.fork`."""
        ...

    def close(self) -> "Future[None]":
        """Begin to close the env, and return what is done when it is closed."""
        ...


class Env(gymnasium.Env[str, str], Generic[StateT]):
    """An environment of text: one task, one episode at a time."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # Gymnasium's own declaration
    system_prompt: str = ""
    """Standing instructions, shown once as the system message."""
    fork_capability: ClassVar[ForkCapability] = ForkCapability.STATE
    blocking: bool = False
    """True where `reset` or `step` may wait (process, network, disk): drivers then give the env a thread."""
    chance_score: float = 0.0
    """Highest expected episode reward of an agent that does not read the task (empty, echo, random)."""
    optimum: float = 1.0
    """Episode reward that the oracle reaches."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Bounds of an episode's reward."""
    propagated_errors: ErrorTypes = ()
    """Errors of tools that end the episode as a failure of the env; any other is answered with its type and message."""
    unchecked: ClassVar[Mapping[str, str]] = {}
    """Conformance checks that do not apply to this env, each with the reason; `envgym check` shows them as skipped, and
    also entries of other names, such as settings of tasks that the env does not read."""

    tasks: TaskSource
    state: StateT
    """All that an episode changes, in one copyable object."""
    recording: Recording | None = None
    """The running episode so far; kept only where `fork_capability` is `REPLAY`."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]  # whatever the env's own constructor takes
    _generator: np.random.Generator | None = None
    _make_generator: Callable[[], np.random.Generator] | None = None
    """Makes the generator when it is first drawn from: most episodes and their forks never need one."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Remember the arguments, so that `fresh` can make another instance."""
        self = super().__new__(cls)
        self._made_with = (args, kwargs)
        return self

    def __init__(
        self,
        *,
        max_turns: int | None = None,
        parties: Mapping[str, Party] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare an env without an episode; call `reset` next."""
        if max_turns is not None and max_turns < 1:
            raise InvalidInput.of("max_turns", "be at least 1", max_turns, where="make", do="pass 1 or None")
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
        raise NoOracle(sentence(type(self).__name__, "define oracle()", "none", where="Env", do="write it"))

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools by name; the default finds the methods marked with `@tool`."""
        cls: type = type(self)
        return collect_tools(cls)

    def tool_owner(self) -> object:
        """Return the object whose methods the tools are; the default is the env itself."""
        return self

    def after_tools(self, observation: Observation) -> Reply:
        """Decide what follows a turn of tool calls; the default shows their results and goes on."""
        return Reply(observation=observation)

    def fork_state(self) -> StateT:
        """Return an independent copy of the state; override where something cheaper than a deep copy is exact."""
        return copy.deepcopy(self.state)

    # ---- Gymnasium's contract --------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task of the running episode. Raises: ResetNeeded: before the first reset."""
        if self._task is None:
            raise ResetNeeded.of("task", "be read after reset", "no episode", where=self.name, do="call reset")
        return self._task

    @property
    def unwrapped(self) -> Self:
        return self

    @property
    def name(self) -> str:
        """The id the env was made under, else its class name."""
        return self.spec.id if self.spec is not None else type(self).__name__

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Start an episode. `options` may hold `task` (a Task), or `split` and `index`; default: a random train task.

        Raises: InvalidInput: an unknown option or split. InfrastructureError: the env could not be set up.
        """
        if seed is not None:
            seed = read_seed(seed, where=self.name)
        self._take_seed(seed)
        self._is_over = True
        try:
            task = _choose_task(self, options or {})
            if seed is not None:
                self.own_generator()  # nobody else has the one that drew the task; forks share the state it left
            start = copy_generator(self.np_random) if self.fork_capability is ForkCapability.REPLAY else None
            first = _observed(self.begin(task), "begin")
        except EnvgymError:
            raise
        except Exception as error:
            raise EnvFailure(_failure("reset", self.name, error)) from error
        self._task, self._turn, self._is_over, self._last = task, 0, False, first
        self.recording = Recording(generator=start, first=first) if start is not None else None
        tools = tuple(item.spec for item in self.toolset().values())
        record = ResetRecord(task=task, observation=first, system_prompt=self.system_prompt, tools=tools, seed=seed)
        return ResetResult(first, {"envgym": record})

    def step(self, action: str) -> StepResult:
        """Play one turn. A plain `str` is parsed for tool calls; an `Action` is taken as it is.

        Raises: ResetNeeded: no episode is running. InvalidInput: the action is no string.
        """
        parsed = self._begin_turn(action)
        try:
            record = self._play(parsed)
        except Exception as error:  # noqa: BLE001  # a failed turn is a record
            record = self._failed_turn(parsed, error)
        return self._end_turn(record)

    def _begin_turn(self, action: str) -> Action:
        """Return the action of a turn. Raises: as `step`."""
        if self._is_over:
            got, do = "an episode that is over", "call reset first"
            raise ResetNeeded.of("step", "follow a reset", got, where=self.name, do=do)
        if not isinstance(action, str):
            raise InvalidInput.of("action", "be a str", action, where=self.name, do="pass text or an Action")
        return _parsed(action)

    def _end_turn(self, record: StepRecord) -> StepResult:
        """Return the result of a turn that was played, which counts from now on."""
        if record.ending is None and self.max_turns is not None and self._turn + 1 >= self.max_turns:
            record = replace(record, ending=Ending.TRUNCATED_TURNS)
        self._turn, self._is_over, self._last = self._turn + 1, record.ending is not None, record.observation
        if self.recording is not None:
            self.recording = replace(self.recording, turns=(*self.recording.turns, record))
        return step_result(record)

    def _failed_turn(self, action: Action, error: Exception) -> StepRecord:
        """Return the record of a turn that raised an error: the one place where a failed turn becomes a record."""
        log_error(error, f"step of {self.name} failed, and the reward of the episode is invalid")
        return failed_record(self._turn, action, ending_of(error), _failure("step", self.name, error))

    def _play(self, action: Action) -> StepRecord:
        if len(action) > MAX_ACTION_CHARS:
            text = f"Your message has {len(action)} characters; at most {MAX_ACTION_CHARS} are read."
            return _settled(self._turn, action, Reply(observation=text))
        if action.tool_calls or action.malformed:
            ran = run_calls(self.toolset(), self.tool_owner(), action, propagated=self.propagated_errors)
            reply = self.after_tools(Observation.of(ran.messages))
            return _settled(self._turn, action, reply, len(action.tool_calls), ran.num_errors)
        return _settled(self._turn, action, self.respond(action))

    def async_calls(self) -> "AsyncCalls | None":
        """Return coroutines in place of `reset`, `step`, `fork` and `close`; None: the env has none.

        A driver of an env that has them gives it no thread for these calls, even where it is `blocking`.
        """
        return None

    def render(self) -> str:
        """Return the last observation as text."""
        return str(self._last)

    # ---- generator -------------------------------------------------------------------------------------------

    @property
    def _np_random(self) -> np.random.Generator | None:
        """Gymnasium's field: the env's generator; None before the first reset."""
        if self._generator is None and self._make_generator is not None:
            self._generator = self._make_generator()
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator = generator

    def _take_seed(self, seed: int | None) -> None:
        """Take the seed of a reset; without one the generator of the last reset goes on."""
        if seed is not None:
            self._generator, self._make_generator, self._np_random_seed = None, partial(_seeded, seed), seed
        elif self._np_random_seed is None:
            self._generator, self._np_random_seed = seeding.np_random()

    def own_generator(self) -> None:
        """Go on with a copy of the generator, made when it is drawn from: that of a shallow copy belongs to the env."""
        if self._generator is not None:
            bits = self._generator.bit_generator
            self._generator, self._make_generator = None, partial(restore_generator, type(bits), bits.state)

    # ---- copies ----------------------------------------------------------------------------------------------

    def fork(self) -> Self:
        """Return an independent copy that continues from here: state, generator, turn count, task.

        Raises: ForkUnsupported: the env declares `NONE`, or its replay disagreed. ResetNeeded: no episode yet.
        """
        if self._task is None:
            raise ResetNeeded.of("fork", "follow a reset", "no episode", where=self.name, do="call reset first")
        if self.recording is not None:
            return replay(self.recording, self.fresh(), task=self._task, name=self.name)
        if self.fork_capability is not ForkCapability.STATE:
            do = "use a strategy that needs no fork, such as chain"
            raise ForkUnsupported.of("fork", "be supported by the env", "none", where=self.name, do=do)
        fork = copy.copy(self)
        fork.state = self.fork_state()
        fork.own_generator()
        return fork

    def fresh(self) -> Self:
        """Return a new instance, made with the same arguments as this one."""
        args, kwargs = self._made_with
        env = type(self)(*args, **kwargs)
        env.spec, env.render_mode = self.spec, self.render_mode
        return env


def _seeded(seed: int) -> np.random.Generator:
    return seeding.np_random(seed)[0]


def _settled(turn: int, action: Action, reply: Reply, tool_calls: int = 0, tool_errors: int = 0) -> StepRecord:
    """Turn an author's reply into a record. Raises: TypeError, InvalidInput: it is none, or its reward is no number."""
    if not isinstance(reply, Reply):
        raise TypeError(sentence("respond", "return a Reply", reply, where="Env", do="return Reply(observation=...)"))
    raw: object = reply.reward
    reward: Reward
    if isinstance(raw, (Scored, Invalid)):
        reward = raw
    else:
        value = raw if type(raw) is float else as_number(raw)
        if value is None:
            do = "return Reply(reward=...)"
            raise TypeError(sentence("reward", "be a number, Scored or Invalid", repr(raw), where="respond", do=do))
        reward = Scored(value=value) if value else ZERO  # as most turns pay
    invalid = reward if isinstance(reward, Invalid) else None
    return StepRecord(
        turn=turn,
        action=action,
        observation=_observed(reply.observation, "respond"),
        reward=reward,
        ending=invalid.cause if invalid else Ending.TERMINATED if reply.terminated else None,
        tool_calls=tool_calls,
        tool_errors=tool_errors,
        error=invalid.reason if invalid else None,
    )


def _observed(text: str, where: str) -> Observation:
    if not isinstance(text, str):
        raise TypeError(sentence("observation", "be a str", text, where=where, do="return text"))
    return text if isinstance(text, Observation) else Observation(text)


def _parsed(action: str) -> Action:
    """Read tool calls out of plain text; a text that will not be run is not parsed either."""
    if isinstance(action, Action):
        return action
    return parse_action(action) if len(action) <= MAX_ACTION_CHARS else Action(action)


def _choose_task(env: Env[Any], options: Mapping[str, Any]) -> Task:  # every env has its own state type
    """Return the task that the reset options ask for, a random one of the split where they name no index."""
    tasks, where = env.tasks, env.name
    unknown = sorted(set(options) - {"task", "split", "index"})
    if unknown or ("task" in options and len(options) > 1):
        got = unknown or sorted(options)
        raise InvalidInput.of(
            "reset options", "be task alone, or split and index", got, where=where, do="drop the others"
        )
    task, index = options.get("task"), options.get("index")
    if task is not None:
        if not isinstance(task, Task):
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("options['task']", "be a Task", task, where=where, do=do)
        return task
    split = Split.parse(options.get("split") or Split.TRAIN, where=where)
    size = tasks.size(split)
    InvalidInput.unless(size != 0, "split", "hold tasks", split.value, where=where, do="choose another split")
    if index is None:
        index = env.np_random.integers(size if size is not None else 2**31)
    return tasks.task(split, int(index))


def _failure(what: str, name: str, error: Exception) -> str:
    return f"{what} of {name} failed: {type(error).__name__}: {error}"


def share_state(env: Env[StateT]) -> StateT:
    """Return the state itself: `fork_state = share_state` in the class of an env whose state is immutable."""
    return env.state
