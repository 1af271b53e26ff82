"""What every driver needs: an episode to run, and its env (inline or in a thread of its own).

Whatever an env raises leaves here as an `InfrastructureError`; a driver records it as the episode's ending.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env
from envgym.errors import EnvFailure, InfrastructureError
from envgym.parsing import parse_action
from envgym.records import ResetRecord, StepRecord, StepResult
from envgym.seeds import derive_seed

_log = logging.getLogger(__name__)

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

    @property
    def sampling_seed(self) -> int:
        """The seed of the policy's randomness."""
        return derive_seed(self.seed, "policy") if self.policy_seed is None else self.policy_seed


class EpisodeEnv:
    """The env of one episode. An env that declares `blocking` gets one thread for all its calls, in order."""

    def __init__(self, job: EpisodeJob) -> None:
        """Hold `job`; nothing is made before `reset`."""
        self._job = job
        self._env: Env[Any] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def reset(self) -> ResetRecord:
        """Make and reset the env. Raises: InfrastructureError: it failed."""
        env = self._env = _named("make", self._job.make_env)
        if getattr(env.unwrapped, "blocking", True):
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"env-{self._job.tree_id}")
        _, info = await self._call("reset", env.reset, seed=self._job.seed, options={"task": self._job.task})
        record = info.get("envgym")
        if not isinstance(record, ResetRecord):
            raise EnvFailure("reset returned no ResetRecord in info['envgym']: a wrapper dropped it")
        return record

    async def step(self, action: Action) -> StepResult:
        """Let the env answer. Raises: InfrastructureError: it failed without a record."""
        step = self._running.step
        result = _named("step", step, action) if self._thread is None else await self._call("step", step, action)
        if not isinstance(result[4].get("envgym"), StepRecord):
            raise EnvFailure("step returned no StepRecord in info['envgym']: a wrapper dropped it")
        return StepResult(*result)  # Gymnasium's own wrappers return a bare tuple

    async def oracle(self) -> Action:
        """Return the env's own best next action. Raises: InfrastructureError: the oracle failed."""
        text = await self._call("oracle", self._running.unwrapped.oracle)
        return text if isinstance(text, Action) else parse_action(text)

    async def close(self) -> None:
        """Close the env and let its thread go; a failure is logged, the episode stands."""
        if self._env is None:
            return
        await self._call("close", self._close_or_log)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def abandon(self) -> None:
        """Close the env without waiting: after a cancellation, behind whatever its thread is still doing."""
        if self._thread is not None:
            self._thread.submit(self._close_or_log)
            self._thread.shutdown(wait=False)
        elif self._env is not None:
            self._close_or_log()

    def _close_or_log(self) -> None:
        try:
            _named("close", self._running.close)
        except InfrastructureError as error:
            _log.warning("%s of episode %s", error, self._job.tree_id)

    @property
    def _running(self) -> Env[Any]:
        assert self._env is not None, "reset comes first"
        return self._env

    async def _call(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._thread is None:
            return _named(what, function, *args, **kwargs)
        call = partial(_named, what, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _named(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`; whatever it raises is an InfrastructureError that says what was being done."""
    try:
        return function(*args, **kwargs)
    except InfrastructureError:
        raise
    except Exception as error:
        raise EnvFailure(f"{what} failed: {type(error).__name__}: {error}") from error
