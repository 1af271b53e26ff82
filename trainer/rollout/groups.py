"""Groups under way (each is begun once; its trees then grow and end by themselves), and what is known of each task."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envgym.agents.rollout.episode import EpisodeFactory, EpisodeJob
from envgym.agents.rollout.pool import AbortHandle, GrowTreeFn, PendingTree, RolloutPool
from envgym.agents.search import Chain, RolloutContext, Strategy
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, StartState
from envgym.core.tree import Tree
from envgym.errors import SettingsError
from envgym.seeds import derive_seed
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import TaskRequest, TaskStats
from envgym.trainer.rollout.annotate import AnnotatedGroup, AnnotateStage

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
    annotated: "asyncio.Task[AnnotatedGroup] | None" = None
    """Ends when its trees have been annotated; None: the run has no annotators."""

    @property
    def work(self) -> "Iterator[asyncio.Future[Tree] | asyncio.Task[AnnotatedGroup]]":
        """All that must be done before it is finished."""
        yield from (pending.tree for pending in self.trees)
        if self.annotated is not None:
            yield self.annotated

    @property
    def is_finished(self) -> bool:
        """Whether all of its trees have ended and were annotated."""
        return all(part.done() for part in self.work)

    @property
    def group(self) -> Group:
        """The group, once it is finished."""
        if self.annotated is not None:
            return self.annotated.result().group
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
        annotate: AnnotateStage | None = None,
    ) -> None:
        """Get ready; nothing is begun."""
        self._context, self._env_sources, self._tasks = context, env_sources, tasks
        self._search, self._seed, self._annotate = search, seed, annotate
        self._pool = RolloutPool(concurrency=concurrency)
        self._annotating: set[asyncio.Task[AnnotatedGroup]] = set()

    def begin(self, request: TaskRequest, *, step: int, number: int) -> GroupRollout:
        """Begin a group.

        Args:
            request: its task and size.
            step: train steps done before the one that it is for.
            number: of the request among those of its step; seeds derive from it.
        """
        task = self._tasks.task(request.env, request.index)
        make_job, group_size = self._episode_factory(request, task, step, number), request.group_size
        search = Chain() if request.direct else self._search
        context = self._context if request.sampling is None else replace(self._context, sampling=request.sampling)
        key = f"step-{step:06d}/{number:03d}"
        trees = tuple(
            self._pool.submit(_grow_tree_fn(search, make_job(index), context, group_size))
            for index in range(search.num_trees(group_size))
        )
        annotated = None
        if self._annotate is not None:
            annotated = asyncio.ensure_future(self._annotated(key, trees, self._annotate, step=step, task=task))
            self._annotating.add(annotated)
            annotated.add_done_callback(self._annotating.discard)
        return GroupRollout(request=request, key=key, trees=trees, pool=self._pool, annotated=annotated)

    async def close(self) -> None:
        """Cancel the groups under way."""
        under_way = list(self._annotating)
        for annotated in under_way:
            annotated.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._pool.close()

    async def _annotated(
        self, key: str, trees: Sequence[PendingTree], annotate: AnnotateStage, *, step: int, task: Task
    ) -> AnnotatedGroup:
        """Annotate a group when its trees have ended."""
        ended = await asyncio.gather(*[asyncio.shield(pending.tree) for pending in trees])
        return await annotate.annotate(Group(key=key, trees=tuple(ended)), self._context, step=step, task=task)

    def _episode_factory(self, request: TaskRequest, task: Task, step: int, number: int) -> EpisodeFactory:
        """Return the jobs of a group's trees by index; they share task and env seed, and sample differently."""
        env_source = self._env_sources[request.env]
        names = (self._seed, "step", step, number, request.env, request.index)
        start = request.start
        if start is not None:
            _check_start(start, task, env_source)
        seed = derive_seed(*names, "env") if start is None else start.tree.seed

        def make_job(index: int) -> EpisodeJob:
            return EpisodeJob(
                make_env=env_source.make,
                task=task,
                seed=seed,
                policy_seed=derive_seed(*names, "policy", index),
                tree_id=f"step-{step:06d}/{number:03d}/{index:02d}",
                env_id=env_source.env_id,
                start=start,
                hint=request.hint,
                prompts=request.prompts,
            )

        return make_job


def _check_start(start: StartState, task: Task, env_source: EnvSource) -> None:
    """Refuse a start state that no episode of the task can have. Raises: SettingsError."""
    tree, where = start.tree, f"start state of {env_source.label}"
    if (tree.env_id, tree.task_key) != (env_source.env_id, task.key):
        got = f"one of {tree.env_id}, task {tree.task_id}"
        must, do = f"be recorded of {env_source.env_id}, task {task.id}", "ask for the task that was recorded"
        raise SettingsError.of("start state", must, got, where=where, do=do)


def _grow_tree_fn(search: Strategy, job: EpisodeJob, context: RolloutContext, group_size: int) -> GrowTreeFn:
    async def grow(abort: AbortHandle) -> Tree:
        return await search.grow_tree(job, context, group_size=group_size, abort=abort)

    return grow
