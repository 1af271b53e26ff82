"""Where in an episode another branch can begin: a copy of the env, or the recorded turns that lead there.

Whatever goes wrong on the way back is an `InfrastructureError`; the branch that wanted to begin there records it.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from envgym.agents.episode import EpisodeEnv, EpisodeJob
from envgym.agents.path import Link
from envgym.core.messages import Observation
from envgym.core.turns import Cost, TurnOutcome
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InfrastructureError, SettingsError, sentence
from envgym.records import StepRecord


class Branching(StrEnum):
    """How a branch gets its env."""

    AUTO = "auto"
    """As the env declares."""
    FORK = "fork"
    """By copying its state."""
    REPLAY = "replay"
    """By playing the recorded turns again, and seeing that everything agrees."""


def branching_of(env: Env[Any], asked: Branching, *, where: str) -> Branching:
    """Return how branches of `env` are made. Raises: SettingsError: it cannot be branched, or not as asked."""
    capability, got = env.unwrapped.fork_capability, f"{env.unwrapped.name} with {env.unwrapped.fork_capability}"
    if capability is ForkCapability.NONE:
        do = "use a strategy that begins every episode anew, such as chain or best_of"
        raise SettingsError(sentence("env", "declare fork capability state or replay", got, where=where, do=do))
    if asked is Branching.FORK and capability is not ForkCapability.STATE:
        must = "go with an env that copies its state"
        raise SettingsError(sentence("branching=fork", must, got, where=where, do="set branching=auto"))
    if asked is Branching.AUTO:
        return Branching.FORK if capability is ForkCapability.STATE else Branching.REPLAY
    return asked


class SearchEnv(EpisodeEnv):
    """The env of one branch."""

    @property
    def made(self) -> Env[Any]:
        """The env itself."""
        return self._running

    async def fork(self) -> "SearchEnv":
        """Return an independent copy that continues from here. Raises: InfrastructureError: the copy failed."""
        twin = SearchEnv(self._job)
        twin._env = await self._call("fork", self._running.fork)
        if self._thread is not None:
            twin._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"env-{self._job.tree_id}")
        return twin


class Snapshot(Protocol):
    """A place in an episode that can be gone back to."""

    @property
    def opening(self) -> Cost:
        """What `open` spends."""
        ...

    async def open(self) -> SearchEnv:
        """Return an env that continues from here. Raises: InfrastructureError: there is no way back."""
        ...

    async def close(self) -> None:
        """Let go of what is kept."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """An env that is never stepped, only copied."""

    env: SearchEnv
    opening: Cost = field(default_factory=Cost)

    async def open(self) -> SearchEnv:
        """Return a copy."""
        return await self.env.fork()

    async def close(self) -> None:
        """Close the env."""
        await self.env.close()


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """A place whose env could not be copied when it was there."""

    reason: InfrastructureError
    opening: Cost = field(default_factory=Cost)

    async def open(self) -> SearchEnv:
        """Raise what went wrong then."""
        raise self.reason

    async def close(self) -> None:
        """Do nothing: nothing is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The turns that lead to a place, to be played again in a new env."""

    job: EpisodeJob
    first: Observation
    turns: tuple[TurnOutcome, ...]
    opening: Cost

    @classmethod
    def of(cls, job: EpisodeJob, first: Observation, path: Link | None) -> "Recorded":
        """Read the turns off a path."""
        links = [link for link in (path.line() if path is not None else ()) if link.outcome is not None]
        calls = sum(link.edge.cost.tool_calls for link in links)
        turns = tuple(link.outcome for link in links if link.outcome is not None)
        return cls(job, first, turns, Cost(tool_calls=calls, env_steps=len(turns)))

    async def open(self) -> SearchEnv:
        """Play the turns again. Raises: InfrastructureError: the env failed, or something differs; it is named."""
        env = SearchEnv(self.job)
        try:
            _agree("first observation", self.first, (await env.reset()).observation, self.job)
            for number, turn in enumerate(self.turns):
                again = (await env.step(turn.action)).info["envgym"]
                assert isinstance(again, StepRecord), "the env's contract"
                _agree(f"observation of turn {number}", turn.observation, again.observation, self.job)
                _agree(f"reward of turn {number}", turn.reward, again.reward, self.job)
                _agree(f"ending of turn {number}", None, again.ending, self.job)
        except BaseException:
            env.abandon()
            raise
        return env

    async def close(self) -> None:
        """Do nothing: nothing is kept."""


def _agree(what: str, before: object, now: object, job: EpisodeJob) -> None:
    """Refuse a replay in which `now` is not `before`."""
    is_same = before == now
    if isinstance(before, Observation) and isinstance(now, Observation):
        is_same = is_same and before.messages == now.messages
    if not is_same:
        must, do = f"equal {before!r:.80}", "make episodes of one seed repeat, or declare ForkCapability.NONE"
        where = f"{job.env_id}, tree {job.tree_id}"
        raise EnvFailure(sentence(f"{what} of the replay", must, f"{now!r:.80}", where=where, do=do))
