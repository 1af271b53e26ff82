"""Snapshots of an env, from which another branch can begin: a copy, or the recorded turns that lead to the state.

A snapshot that cannot be opened raises an `InfrastructureError`; the branch that was to begin there records it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from envgym.agents.loop.path import PathNode
from envgym.agents.rollout.driver import close_env, failure_event
from envgym.agents.rollout.episode import EpisodeEnv, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.messages import Observation
from envgym.core.turns import Cost, TurnOutcome
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InfrastructureError, SettingsError
from envgym.forking import check_equal
from envgym.records import StepRecord


class Branching(StrEnum):
    """How a branch gets its env."""

    AUTO = "auto"
    """As the env declares."""
    FORK = "fork"
    """By copying its state."""
    REPLAY = "replay"
    """By replaying the recorded turns in a new env, and checking that everything is equal."""


def resolve_branching(env: Env[Any], branching: Branching, *, where: str) -> Branching:
    """Return how branches of `env` are made. Raises: SettingsError: it cannot be branched, or not in that way."""
    capability, got = env.unwrapped.fork_capability, f"{env.unwrapped.name} with {env.unwrapped.fork_capability}"
    if capability is ForkCapability.NONE:
        do = "use a search that starts every episode from the beginning, such as chain or best_of"
        raise SettingsError.of("env", "declare fork capability state or replay", got, where=where, do=do)
    if branching is Branching.FORK and capability is not ForkCapability.STATE:
        must = "be used with an env that copies its state"
        raise SettingsError.of("branching=fork", must, got, where=where, do="set branching=auto")
    if branching is Branching.AUTO:
        return Branching.FORK if capability is ForkCapability.STATE else Branching.REPLAY
    return branching


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The way back to a state of an episode's env."""

    open: Callable[[], Awaitable[EpisodeEnv]]
    """Returns an env that continues from here. Raises: InfrastructureError: there is no way back."""
    cost: Cost = field(default_factory=Cost)
    """What `open` spends."""


class SnapshotStore:
    """Takes the snapshots of one search tree, and closes the envs that they keep."""

    def __init__(self, branching: Branching | None, abort: AbortHandle) -> None:
        """Begin without a snapshot; `branching` None: an env goes back to its first state alone, by a reset."""
        self._branching, self._abort = branching, abort
        self._first: PathNode | None = None
        """Where the first snapshot was taken: the root, or where a recorded prefix ends."""
        self._envs: list[EpisodeEnv] = []

    def resolve(self, env: EpisodeEnv) -> None:
        """Choose by what `env` declares. Raises: SettingsError: it cannot be branched, or not in the way chosen."""
        if self._branching is not None:
            self._branching = resolve_branching(env.env, self._branching, where=f"tree {env.job.tree_id}")

    async def take(self, env: EpisodeEnv, node: PathNode, *, moves_env: bool = False) -> Snapshot | None:
        """Return a snapshot of `env` at `node`; None where no branch can begin there.

        Args:
            env: as it is at `node`.
            node: the path to it.
            moves_env: keep the env itself instead of a copy.
        """
        self._first = self._first or node
        if self._branching is Branching.REPLAY or (self._branching is None and node is self._first):
            turns = [above for above in node.path() if above.outcome is not None]
            outcomes = [turn.outcome for turn in turns if turn.outcome is not None]
            cost = Cost(tool_calls=sum(turn.edge.cost.tool_calls for turn in turns), env_steps=len(turns))
            return Snapshot(partial(_replay, env.job, env.first_observation, outcomes), cost)
        if self._branching is None:
            return None
        try:
            copy = env.move() if moves_env else await env.fork()
        except InfrastructureError as error:
            return Snapshot(partial(_fail, error))
        except asyncio.CancelledError as error:
            failure_event(error, self._abort)
            return None
        self._envs.append(copy)
        return Snapshot(copy.fork)  # it is never stepped, only copied

    async def close(self) -> None:
        for env in self._envs:
            await close_env(env, self._abort)


async def _fail(error: InfrastructureError) -> EpisodeEnv:
    raise error


async def _replay(job: EpisodeJob, first_observation: Observation, turns: Sequence[TurnOutcome]) -> EpisodeEnv:
    env = EpisodeEnv(job)
    check = partial(check_equal, where=f"{job.env_id}, tree {job.tree_id}", kind=EnvFailure)
    try:
        check("first observation", first_observation, (await env.reset()).observation)
        for number, turn in enumerate(turns):
            again = (await env.step(turn.action)).info["envgym"]
            assert isinstance(again, StepRecord), "the env's contract"
            check(f"observation of turn {number}", turn.observation, again.observation)
            check(f"reward of turn {number}", turn.reward, again.reward)
            check(f"ending of turn {number}", None, again.ending)
    except BaseException:
        env.abandon()
        raise
    return env
