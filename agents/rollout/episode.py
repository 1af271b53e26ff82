"""An episode to run, and its env: called inline, by its coroutines, or in a thread of its own.

Whatever an env raises leaves here as an `InfrastructureError`; the driver records it as the episode's ending.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from envgym.core.json_types import visible
from envgym.core.messages import Action, Observation
from envgym.core.tasks import Task
from envgym.core.trajectory import StartState
from envgym.env import AsyncCalls, Env
from envgym.errors import EnvFailure, InfrastructureError
from envgym.parsing import parse_action
from envgym.records import ResetRecord, StepRecord, StepResult, env_failure
from envgym.runtime.error_log import log_error
from envgym.runtime.processes.log import is_open
from envgym.seeds import derive_seed

_log = logging.getLogger(__name__)
_EMPTY = Observation()

T = TypeVar("T")
P = ParamSpec("P")

Clock = Callable[[], float]
"""Seconds from any fixed moment; tests pass one of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJob:
    """One episode to run."""

    make_env: Callable[[], Env[Any]]
    """Makes an env for this episode alone; the driver closes it."""
    task: Task
    seed: int
    """The env's reset seed."""
    tree_id: str
    env_id: str
    policy_seed: int | None = None
    """What the policy's randomness derives from; None: derived from `seed`. Samples of one group share `seed`, so
    that they begin alike, and differ here."""
    start: StartState | None = None
    """The state of a recorded episode of this task and `seed`, from which this one goes on; None: its reset."""
    hint: str | None = None
    """What a guide adds to the task."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name -> hint that the policy is not given, or other words for the task, around `{task}`; the first context with
    it is kept as `Tree.prompts`."""

    @property
    def sampling_seed(self) -> int:
        """The seed of the policy's randomness."""
        return derive_seed(self.seed, "policy") if self.policy_seed is None else self.policy_seed


EpisodeFactory = Callable[[int], EpisodeJob]
"""Returns the job of a group's k-th tree: all begin alike, and differ in what the policy samples."""


class EpisodeEnv:
    """The env of one episode.

    An env that has coroutines (`Env.async_calls`) is called by these. Another call of it, and all calls of an env that
    declares `blocking`, are made in one thread of its own, in order.
    """

    def __init__(self, job: EpisodeJob, first_observation: Observation = _EMPTY) -> None:
        self.job = job
        self.first_observation = first_observation
        """What `reset` returned."""
        self._env: Env[Any] | None = None
        self._calls: AsyncCalls | None = None
        self._thread: ThreadPoolExecutor | None = None

    def make(self) -> Env[Any]:
        """Make the env. Raises: InfrastructureError: it failed."""
        env = call_env("make", self.job.make_env)
        self._take(env)
        return env

    def _take(self, env: Env[Any]) -> None:
        """Own an env, with a thread if its calls need one."""
        find_calls = getattr(env, "async_calls", None)  # a wrapper of Gymnasium's has none
        self._env, self._calls = env, None if find_calls is None else find_calls()
        if self._calls is None and self._is_blocking:
            self._thread = self._new_thread()

    @property
    def _is_blocking(self) -> bool:
        return getattr(self.env.unwrapped, "blocking", True)

    async def reset(self) -> ResetRecord:
        """Make and reset the env. Raises: InfrastructureError: it failed."""
        env = self.make()
        options = {"task": self.job.task}
        if self._calls is None:
            _, info = await self.call("reset", env.reset, seed=self.job.seed, options=options)
        else:
            _, info = await await_env("reset", self._calls.reset(seed=self.job.seed, options=options))
        record = info.get("envgym")
        if not isinstance(record, ResetRecord):
            raise EnvFailure("reset returned no ResetRecord in info['envgym']: a wrapper dropped it")
        self.first_observation = record.observation
        return record

    async def step(self, action: Action) -> StepResult:
        """Let the env answer. Raises: InfrastructureError: it failed without a record."""
        if self._calls is not None:
            result = await await_env("step", self._calls.step(action))
        elif self._thread is None:
            result = call_env("step", self.env.step, action)
        else:
            result = await self.call("step", self.env.step, action)
        if not isinstance(result[4].get("envgym"), StepRecord):
            raise EnvFailure("step returned no StepRecord in info['envgym']: a wrapper dropped it")
        return result if type(result) is StepResult else StepResult(*result)  # Gymnasium's wrappers return a tuple

    async def oracle(self) -> Action:
        """Return the env's own best next action. Raises: InfrastructureError: the oracle failed."""
        text = await self.call("oracle", self.env.unwrapped.oracle)
        return text if isinstance(text, Action) else parse_action(text)

    async def fork(self) -> "EpisodeEnv":
        """Return an independent copy that continues from here. Raises: InfrastructureError: the copy failed."""
        copy = EpisodeEnv(self.job, self.first_observation)
        if self._calls is not None:
            copy._take(await await_env("fork", self._calls.fork()))
            return copy

        def fork() -> None:
            copy._env = self.env.fork()

        try:
            await self.call("fork", fork)
        except asyncio.CancelledError:
            if self._thread is not None:
                self._thread.submit(copy.abandon)  # the thread may still make the copy
            raise
        copy._take(copy.env)
        return copy

    def move(self) -> "EpisodeEnv":
        """Hand the env over to the one that is returned; closing this one does nothing any more."""
        owner = EpisodeEnv(self.job, self.first_observation)
        owner._env, owner._calls, owner._thread = self._env, self._calls, self._thread
        self._env = self._calls = self._thread = None
        return owner

    async def close(self) -> None:
        """Close the env and let its thread go, also if the caller is cancelled; a failure is logged."""
        done = self._begin_close()
        if done is not None:
            try:
                await await_env("close", asyncio.shield(asyncio.wrap_future(done)))
            except InfrastructureError as error:
                self._log_close(error)

    def abandon(self) -> None:
        """Close the env without waiting: after a cancellation, when its thread has finished what it is doing."""
        self._begin_close()

    def _begin_close(self) -> "Future[None] | None":
        """Begin to close the env, and let its thread go; return what is done when the env is closed. None: it is."""
        done = None
        if self._thread is not None:  # a call of it may be under way, also if the env has coroutines
            done = self._thread.submit(copy_context().run, self._close_or_log)
            self._thread.shutdown(wait=False)
        elif self._calls is not None:
            done = self._calls.close()
        elif self._env is not None:
            self._close_or_log()
        return done

    def _new_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"env-{self.job.tree_id}")

    def _close_or_log(self) -> None:
        try:
            call_env("close", self.env.close)
        except InfrastructureError as error:
            self._log_close(error)

    def _log_close(self, error: InfrastructureError) -> None:
        context = f"{error} of episode {self.job.tree_id}"
        if error.__cause__ is None:
            _log.warning("%s", visible(context))
        else:
            log_error(error.__cause__, context)

    @property
    def env(self) -> Env[Any]:
        assert self._env is not None, "reset comes first"
        return self._env

    async def call(self, method: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that uses the env, where and in the order in which its methods are called.

        Raises: InfrastructureError: whatever it raises, with the name of the method.
        """
        if self._thread is None and self._calls is not None and self._is_blocking:
            self._thread = self._new_thread()
        if self._thread is None:
            return call_env(method, function, *args, **kwargs)
        call = partial(call_env, method, function, *args, **kwargs)
        if is_open():
            call = partial(copy_context().run, call)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def call_env(method: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of an env; whatever it raises becomes an InfrastructureError that names the method."""
    try:
        return function(*args, **kwargs)
    except InfrastructureError:
        raise
    except Exception as error:
        raise env_failure(method, error) from error


async def await_env(method: str, call: Awaitable[T]) -> T:
    """Await a call of an env; whatever it raises becomes an InfrastructureError that names the method."""
    try:
        return await call
    except InfrastructureError:
        raise
    except Exception as error:
        raise env_failure(method, error) from error
