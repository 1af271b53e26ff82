"""Groups under way (each is begun once; its trees then grow and end by themselves), and what is known of each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envgym.agents.rollout.episode import EpisodeFactory, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle, GrowTreeFn, PendingTree, RolloutPool
from envgym.agents.search import RolloutContext, Strategy
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.seeds import derive_seed
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import TaskRequest, TaskStats

Stats = Mapping[tuple[str, int], TaskStats]
"""(env, task index) -> what was seen."""


def updated_stats(stats: Stats, requests: Sequence[TaskRequest], groups: Sequence[Group], *, step: int) -> Stats:
    """Return the task statistics with this step's valid episodes added."""
    updated = dict(stats)
    for request, group in zip(requests, groups, strict=True):
        key = (request.env, request.index)
        old = updated.get(key, TaskStats(0, 0.0, 0.0, step))
        rewards = episode_rewards(group)
        updated[key] = TaskStats(
            attempts=old.attempts + len(rewards),
            rewards=old.rewards + sum(rewards),
            squares=old.squares + sum(reward * reward for reward in rewards),
            last_step=step,
        )
    return updated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRollout:
    """A group that was begun."""

    request: TaskRequest
    key: str
    trees: tuple[PendingTree, ...]
    """Each ends by itself."""
    pool: RolloutPool

    @property
    def is_finished(self) -> bool:
        """Whether all of its trees have ended."""
        return all(pending.tree.done() for pending in self.trees)

    @property
    def group(self) -> Group:
        """The group, once it is finished."""
        return Group(key=self.key, trees=tuple(pending.tree.result() for pending in self.trees))

    def abort(self, reason: str) -> None:
        """Abort the trees that have not ended; their branches under way end with the reason."""
        for pending in self.trees:
            if not pending.tree.done():
                self.pool.abort(pending, reason)


class GroupRunner:
    """Begins groups; they share the slots for branches under way."""

    def __init__(
        self,
        context: RolloutContext,
        env_sources: Mapping[str, EnvSource],
        tasks: TaskPool,
        search: Strategy,
        *,
        concurrency: int,
        seed: int,
    ) -> None:
        """Get ready; nothing is begun."""
        self._context, self._env_sources, self._tasks = context, env_sources, tasks
        self._search, self._seed = search, seed
        self._pool = RolloutPool(concurrency=concurrency)

    def begin(self, request: TaskRequest, *, step: int, number: int) -> GroupRollout:
        """Begin a group.

        Args:
            request: its task and size.
            step: train steps done before the one that it is for.
            number: of the request among those of its step; seeds derive from it.
        """
        make_job, group_size = self._episode_factory(request, step, number), request.group_size
        context = self._context if request.sampling is None else replace(self._context, sampling=request.sampling)
        trees = tuple(
            self._pool.submit(self._grow_tree_fn(make_job(index), context, group_size))
            for index in range(self._search.num_trees(group_size))
        )
        return GroupRollout(request=request, key=f"step-{step:06d}/{number:03d}", trees=trees, pool=self._pool)

    async def close(self) -> None:
        """Cancel the groups under way."""
        await self._pool.close()

    def _grow_tree_fn(self, job: EpisodeJob, context: RolloutContext, group_size: int) -> GrowTreeFn:
        async def grow(abort: AbortHandle) -> Tree:
            return await self._search.grow_tree(job, context, group_size=group_size, abort=abort)

        return grow

    def _episode_factory(self, request: TaskRequest, step: int, number: int) -> EpisodeFactory:
        """Return the jobs of a group's trees by index; they share task and env seed, and sample differently."""
        env_source = self._env_sources[request.env]
        task = self._tasks.task(request.env, request.index)
        names = (self._seed, "step", step, number, request.env, request.index)
        seed = derive_seed(*names, "env")

        def make_job(index: int) -> EpisodeJob:
            return EpisodeJob(
                make_env=env_source.make,
                task=task,
                seed=seed,
                policy_seed=derive_seed(*names, "policy", index),
                tree_id=f"step-{step:06d}/{number:03d}/{index:02d}",
                env_id=env_source.env_id,
            )

        return make_job
