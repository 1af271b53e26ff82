"""The base of all wrappers (passes everything through, keeps the order of reset and step, forks), and plain text."""

import copy
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Self, Union

import gymnasium

from envgym.config.plugins import PluginKind
from envgym.config.tables import KINDS
from envgym.core.signatures import usage
from envgym.core.tasks import Task, TaskSource
from envgym.core.turns import Ending
from envgym.env import AsyncCalls, Env, ForkCapability
from envgym.errors import InvalidInput, ResetNeeded
from envgym.records import ResetRecord, ResetResult, StepRecord, StepResult, step_result
from envgym.seeds import read_seed

AnyEnv = Union[Env[Any], "Wrapper"]  # every env has its own state type


class Wrapper(gymnasium.Wrapper[str, str, str, str]):
    """Passes everything through; a subclass overrides `on_reset`, `after_step` or `on_step`.

    An env with coroutines (`Env.async_calls`) keeps them if the wrapper overrides no more than the first two of these,
    which then run in the event loop and must not wait.
    Whatever a subclass changes during an episode must be immutable (a number, a tuple), or copied in `fork`.
    """

    env: AnyEnv

    def __init__(self, env: AnyEnv) -> None:
        """Wrap `env`. Raises: InvalidInput: it is no envgym env."""
        value: object = env
        if not isinstance(value, Env | Wrapper):
            do = "make it with envgym.make"
            raise InvalidInput.of("env", "be an envgym.Env", value, where=type(self).__name__, do=do)
        super().__init__(env)
        self._is_over = True
        self._turn = 0
        """Index of the turn that is played, from 0."""

    # ---- what a subclass changes -----------------------------------------------------------------------------

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Return the agent's result of a reset."""
        return result

    def on_step(self, action: str) -> StepResult:
        """Play one turn on `self.env`, or instead of it."""
        return self.env.step(action)

    def after_step(self, result: StepResult) -> StepResult:
        """Return the agent's result of a turn that `on_step` has played."""
        return result

    # ---- Gymnasium's contract --------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        seed = self._begin_episode(seed)
        return self._end_reset(self.env.reset(seed=seed, options=options))

    def _begin_episode(self, seed: int | None) -> int | None:
        """Return the seed of a reset. Raises: InvalidInput: it is none."""
        self._is_over, self._turn = True, 0
        return None if seed is None else read_seed(seed, where=self.name)

    def _end_reset(self, result: ResetResult) -> ResetResult:
        result = self.on_reset(result)
        self._is_over = False
        return result

    def step(self, action: str) -> StepResult:
        """Play one turn. Raises: ResetNeeded: no episode is running."""
        self._check_running()
        return self._turn_played(self.on_step(action))

    def _check_running(self) -> None:
        if self._is_over:
            got, do = "an episode that is over", "call reset first"
            raise ResetNeeded.of("step", "follow a reset", got, where=self.name, do=do)

    def _turn_played(self, played: StepResult) -> StepResult:
        result = self.after_step(played)
        self._is_over, self._turn = result.terminated or result.truncated, self._turn + 1
        return result

    def fork(self) -> Self:
        """Return an independent copy, wrapper and env, that continues from here."""
        return self._around(self.env.fork())

    def _around(self, env: AnyEnv) -> Self:
        """Return a copy of the wrapper around another env."""
        twin = copy.copy(self)
        twin.env = env
        return twin

    def async_calls(self) -> AsyncCalls | None:
        """Return the coroutines of the env, with the wrapper around them; None: the env or the wrapper has none."""
        if any(getattr(type(self), name) is not getattr(Wrapper, name) for name in _ONLY_BLOCKING):
            return None
        inner = self.env.async_calls()
        return None if inner is None else _WrappedCalls(self, inner)

    # ---- the rest of our contract, passed through ------------------------------------------------------------

    @property
    def unwrapped(self) -> Env[Any]:
        return self.env.unwrapped

    @property
    def tasks(self) -> TaskSource:
        return self.unwrapped.tasks

    @property
    def task(self) -> Task:
        return self.env.task

    @property
    def name(self) -> str:
        return self.unwrapped.name

    @property
    def system_prompt(self) -> str:
        return self.unwrapped.system_prompt

    @property
    def blocking(self) -> bool:
        return self.unwrapped.blocking

    @property
    def fork_capability(self) -> ForkCapability:
        return self.unwrapped.fork_capability

    def oracle(self) -> str:
        return self.env.oracle()


_ONLY_BLOCKING: Final = ("reset", "step", "on_step", "fork", "close")
"""Methods that a wrapper whose env is called in an event loop must not override."""


class _WrappedCalls:
    """The calls of an env in an event loop, with a wrapper around them."""

    __slots__ = ("_inner", "_wrapper")

    def __init__(self, wrapper: Wrapper, inner: AsyncCalls) -> None:
        self._wrapper, self._inner = wrapper, inner

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        seed = self._wrapper._begin_episode(seed)
        return self._wrapper._end_reset(await self._inner.reset(seed=seed, options=options))

    async def step(self, action: str) -> StepResult:
        self._wrapper._check_running()
        return self._wrapper._turn_played(await self._inner.step(action))

    async def fork(self) -> AnyEnv:
        return self._wrapper._around(await self._inner.fork())

    def close(self) -> "Future[None]":
        return self._inner.close()


WRAPPER: Final[PluginKind[Wrapper]] = KINDS["wrapper"]


def record_of(result: StepResult) -> StepRecord:
    """Return the typed record of a turn."""
    record: StepRecord = result.info["envgym"]
    return record


def reset_record_of(result: ResetResult) -> ResetRecord:
    """Return the typed record of a reset."""
    record: ResetRecord = result.info["envgym"]
    return record


def cut_off(result: StepResult, ending: Ending) -> StepResult:
    """Return the turn with `ending`, where the episode was still going on."""
    record = record_of(result)
    return step_result(replace(record, ending=ending)) if record.ending is None else result


_HOW_TO_CALL = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'


class TextOnly(Wrapper):
    """Shows everything as one plain `str`: instructions, tools and how to call them, and the observation.

    The typed records stay in `info`.
    """

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Put what a chat template would show before the first observation."""
        return ResetResult(opening(reset_record_of(result)), result.info)

    def after_step(self, result: StepResult) -> StepResult:
        return result._replace(observation=str(result.observation))


def opening(record: ResetRecord) -> str:
    """Return instructions, tools and first observation as one text."""
    parts = [record.system_prompt]
    if record.tools:
        tools = [f"- {usage(tool.name, tool.parameters)}: {tool.description}" for tool in record.tools]
        parts.append("\n".join(["Tools:", *tools, f"To call one, write {_HOW_TO_CALL}"]))
    parts.append(str(record.observation))
    return "\n\n".join(part for part in parts if part)
