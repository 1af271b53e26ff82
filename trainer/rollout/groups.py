"""Groups under way: each is begun once, and then grows by itself."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from envgym.agents.driver import run_episode
from envgym.agents.episode import EpisodeJob
from envgym.agents.pool import EpisodePool, Ticket
from envgym.agents.search import Chain, Crew, Strategy
from envgym.agents.search.base import Member
from envgym.core.tasks import Split
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.seeds import derive_seed
from envgym.trainer.build import RunContext
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growing:
    """A group that was begun."""

    request: TaskRequest
    key: str
    trees: "asyncio.Task[tuple[Tree, ...]]"
    units: "tuple[asyncio.Future[Any], ...]"
    """What ends by itself: its episodes, or the search that grows them. Each results in a tree, or in trees."""
    give_up: Callable[[str], None]
    """End the episodes that are under way."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it has ended."""
        return all(unit.done() for unit in self.units)

    @property
    def group(self) -> Group:
        """The group, once it is whole."""
        return Group(key=self.key, trees=self.trees.result())


class Grower:
    """Begins groups; they share the places for episodes under way."""

    def __init__(self, bench: RunContext, settings: TrainSettings, search: Strategy) -> None:
        """Get ready; nothing is begun."""
        self._bench, self._settings, self._search = bench, settings, search
        sampling, places = bench.sampling(settings.rollout.temperature), settings.rollout.concurrency
        self._pool = EpisodePool(
            lambda job, abort: run_episode(job, bench.agent, bench.policy, sampling=sampling, abort=abort),
            concurrency=places,
        )
        self._crew = Crew(agent=bench.agent, policy=bench.policy, sampling=sampling, slots=asyncio.Semaphore(places))
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, request: TaskRequest, *, step: int, number: int) -> Growing:
        """Begin a group.

        Args:
            request: its task and size.
            step: train steps done before the one that it is for.
            number: of the request among those of its step; seeds derive from it.
        """
        member = self._member(request, step, number)
        if isinstance(self._search, Chain):
            tickets = [self._pool.submit(member(index)) for index in range(request.group_size)]
            trees = self._task(_all(tickets))
            units: tuple[asyncio.Future[Any], ...] = tuple(ticket.tree for ticket in tickets)
            give_up: Callable[[str], None] = partial(self._abort, tickets)
        else:
            trees = self._task(self._grow(request, member))
            units, give_up = (trees,), _nothing
        return Growing(request=request, key=f"step-{step:06d}/{number:03d}", trees=trees, units=units, give_up=give_up)

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await self._pool.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, work: Any) -> Any:  # a coroutine and its task
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _abort(self, tickets: Sequence[Ticket], reason: str) -> None:
        for ticket in tickets:
            self._pool.abort(ticket, reason)

    async def _grow(self, request: TaskRequest, member: Member) -> tuple[Tree, ...]:
        return (await self._search.grow(member, self._crew, group_size=request.group_size)).trees

    def _member(self, request: TaskRequest, step: int, number: int) -> Member:
        """Return the job of each of a group's trees; they share task and env seed, and differ in what is sampled."""
        env_source = self._bench.env_sources[request.env]
        task = env_source.tasks.task(Split.TRAIN, request.index)
        names = (self._settings.run.seed, "step", step, number, request.env, request.index)
        seed = derive_seed(*names, "env")

        def member(index: int) -> EpisodeJob:
            return EpisodeJob(
                make_env=env_source.make,
                task=task,
                seed=seed,
                policy_seed=derive_seed(*names, "policy", index),
                tree_id=f"step-{step:06d}/{number:03d}/{index:02d}",
                env_id=env_source.env_id,
            )

        return member


async def _all(tickets: Sequence[Ticket]) -> tuple[Tree, ...]:
    return tuple(await asyncio.gather(*[ticket.tree for ticket in tickets]))


def _nothing(reason: str) -> None:
    """A search cannot be given up; settings that ask for it are refused."""
