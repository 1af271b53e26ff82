"""Groups under way (each is begun once; its trees then grow and end by themselves), and what is known of each task."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from envgym.agents.loop.agent import Agent
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.rollout.pool import PendingTree, RolloutPool
from envgym.agents.search import Chain, RolloutContext, Strategy
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, StartState
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.env_source import EnvSource, TaskPool
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.protocols import Allocator, Curriculum, Filter, TaskRequest, TaskStats
from envgym.trainer.methods.replay.base import Replay
from envgym.trainer.rollout.annotate import AnnotatedGroup, AnnotateStage
from envgym.trainer.rollout.settings import RolloutSettings, check_trainable
from envgym.trainer.rollout.trees import GrowTree, TreeGrower, TreeOrder, group_key

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


OnTree = Callable[["asyncio.Future[Tree]"], None]


@dataclass(slots=True, kw_only=True, eq=False)
class GroupRollout:
    """A group that was begun."""

    request: TaskRequest
    key: str
    pool: RolloutPool
    trees: list[PendingTree] = field(default_factory=list)
    """Each ends by itself; an allocator may add more when all have ended."""
    completion: "asyncio.Task[AnnotatedGroup] | None" = None
    """Ends when the allocator adds no more trees, and they were annotated; None: the run has neither."""
    is_aborted: bool = False
    _callbacks: list[OnTree] = field(default_factory=list)

    @property
    def work(self) -> "Iterator[asyncio.Future[Tree] | asyncio.Task[AnnotatedGroup]]":
        """All that must be done before it is finished."""
        yield from (pending.tree for pending in self.trees)
        if self.completion is not None:
            yield self.completion

    @property
    def is_finished(self) -> bool:
        """Whether all of its trees have ended, no more will follow, and they were annotated."""
        return all(part.done() for part in self.work)

    @property
    def is_annotating(self) -> bool:
        """Whether all of its trees have ended, and its annotations have not: a slow judge is no straggler."""
        return not self.is_finished and all(pending.tree.done() for pending in self.trees)

    @property
    def group(self) -> Group:
        """The group, once it is finished."""
        if self.completion is not None:
            return self.completion.result().group
        return Group(key=self.key, trees=tuple(pending.tree.result() for pending in self.trees))

    async def ended_trees(self) -> Group:
        """Wait for the trees that were begun, and return them."""
        trees = await asyncio.gather(*[asyncio.shield(pending.tree) for pending in self.trees])
        return Group(key=self.key, trees=tuple(trees))

    def add(self, pending: PendingTree) -> None:
        """Take up a tree that was begun."""
        self.trees.append(pending)
        for callback in self._callbacks:
            pending.tree.add_done_callback(callback)

    def on_tree(self, callback: OnTree) -> None:
        """Call `callback` with every tree as it ends, and soon with those that have."""
        self._callbacks.append(callback)
        for pending in self.trees:
            pending.tree.add_done_callback(callback)

    def abort(self, reason: str) -> None:
        """Abort the trees that have not ended; their branches under way end with the reason."""
        self.is_aborted = True
        for pending in self.trees:
            if not pending.tree.done():
                self.pool.abort(pending, reason)


async def wait_for(groups: Iterable[GroupRollout]) -> None:
    """Wait for groups to end. Raises: the first error of a rollout that could not become an ending."""
    await asyncio.gather(*[part for rollout in groups for part in rollout.work])


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectPlan:
    """What the next groups are made of, and how; replaced when a controller changes settings."""

    rollout: RolloutSettings
    """The groups of a step, and how far sampling runs ahead."""
    env_sources: Mapping[str, EnvSource]
    """Of the mixture, by label."""
    tasks: TaskPool
    """The tasks of the envs, and those that the run adds."""
    agent: Agent
    policy: Policy
    sampling: Sampling
    curriculum: Curriculum
    search: Strategy
    """How the trees of a group are grown."""
    keep_groups: Filter
    """Decides how many rounds a step needs."""
    concurrency: int
    """Branches, and trees, under way at a time."""
    seed: int
    """Tasks, envs and samples derive from it."""
    rounds: int = 1
    """Most rounds of a step."""
    last: int | None = None
    """The step after the last one, for which nothing is begun; None: there is none."""
    annotate: AnnotateStage | None = None
    """Annotates every group as soon as its trees have ended."""
    replay: Replay | None = None
    """May change what is sampled."""
    allocator: Allocator | None = None
    """Extends groups whose trees have ended, up to `rollout.max_group_size` episodes."""
    weighs_samples: bool = False
    """As `Objective` has it; else a request may not ask for another temperature than the run's."""
    grow_elsewhere: GrowTree | None = None
    """Grows the trees in rollout workers; None: they are grown in this process."""


class GroupRunner:
    """Begins groups; they share the slots for branches under way."""

    def __init__(self, plan: CollectPlan) -> None:
        """Get ready; nothing is begun."""
        self.plan = plan
        """Of the next groups; what has begun goes on as it was."""
        self._slots = asyncio.Semaphore(plan.concurrency)
        self._pool = RolloutPool(concurrency=plan.concurrency)
        self._completing: set[asyncio.Task[AnnotatedGroup]] = set()

    @property
    def _context(self) -> RolloutContext:
        plan = self.plan
        return RolloutContext(agent=plan.agent, policy=plan.policy, sampling=plan.sampling, slots=self._slots)

    def begin(self, request: TaskRequest, *, step: int, number: int) -> GroupRollout:
        """Begin a group.

        Args:
            request: its task and size.
            step: train steps done before the one that it is for.
            number: of the request among those of its step; seeds derive from it.
        """
        task = self.plan.tasks.task(request.env, request.index)
        rollout = GroupRollout(request=request, key=group_key(step, number), pool=self._pool)

        def begin_trees(request: TaskRequest) -> None:
            self._check(request, task)
            search = Chain() if request.direct else self.plan.search
            order = TreeOrder(request=request, task=task, step=step, number=number, index=len(rollout.trees))
            grow = self._grow_tree
            for index in range(order.index, order.index + search.num_trees(request.group_size)):
                rollout.add(self._pool.submit(partial(grow, replace(order, index=index))))

        begin_trees(request)
        if self.plan.annotate is not None or self.plan.allocator is not None:
            completion = asyncio.ensure_future(self._complete(rollout, begin_trees, step=step, task=task))
            self._completing.add(completion)
            completion.add_done_callback(self._completing.discard)
            rollout.completion = completion
        return rollout

    async def close(self) -> None:
        """Cancel the groups under way."""
        under_way = list(self._completing)
        for completion in under_way:
            completion.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._pool.close()

    async def _complete(
        self, rollout: GroupRollout, begin_trees: Callable[[TaskRequest], None], *, step: int, task: Task
    ) -> AnnotatedGroup:
        group, allocator, annotate = await rollout.ended_trees(), self.plan.allocator, self.plan.annotate
        if allocator is not None:
            request, num_asked = replace(rollout.request, task=task), rollout.request.group_size
            for number in count():
                more = allocator.extend(request, group, round=number, step=step)
                left = self.plan.rollout.max_group_size - num_asked
                if more is None or left < 1 or rollout.is_aborted:
                    break
                _check_extension(request, more)
                num_asked += min(more.group_size, left)
                begin_trees(replace(more, group_size=min(more.group_size, left)))
                group = await rollout.ended_trees()
            group = allocator.finish(request, group)
        if annotate is None:
            return AnnotatedGroup(group, 0.0)
        return await annotate.annotate(group, self._context, step=step, task=task)

    @property
    def _grow_tree(self) -> GrowTree:
        """Grows the trees of the groups that begin now."""
        plan = self.plan
        if plan.grow_elsewhere is not None:
            return plan.grow_elsewhere
        return TreeGrower(env_sources=plan.env_sources, context=self._context, search=plan.search, seed=plan.seed)

    def _check(self, request: TaskRequest, task: Task) -> None:
        """Refuse a start state of another task, and samples that the objective would take for the run's own.

        Raises: SettingsError.
        """
        if request.start is not None:
            _check_start(request.start, task, self.plan.env_sources[request.env])
        if request.sampling is None:
            return
        where, usual = f"request of task {request.index} of {request.env}", self.plan.sampling.temperature
        check_trainable(request.sampling, where=where)
        temperature = request.sampling.temperature
        if temperature != usual and not self.plan.weighs_samples:
            must = f"be the run's {usual:g} without an off-policy correction"
            do = "set correction.name=tis, or objective.old_policy=rollout"
            raise SettingsError.of("sampling.temperature", must, temperature, where=where, do=do)


def _check_start(start: StartState, task: Task, env_source: EnvSource) -> None:
    tree, where = start.tree, f"start state of {env_source.label}"
    if (tree.env_id, tree.task_key) != (env_source.env_id, task.key):
        got = f"one of {tree.env_id}, task {tree.task_id}"
        must, do = f"be recorded of {env_source.env_id}, task {task.id}", "request the task that was recorded"
        raise SettingsError.of("start state", must, got, where=where, do=do)


def _check_extension(request: TaskRequest, more: TaskRequest) -> None:
    """Refuse an extension that is none. Raises: InvalidInput: it is of another task, or of no episode."""
    if (more.env, more.index) != (request.env, request.index) or more.group_size < 1:
        got = f"{more.group_size} of {more.env}, task {more.index}"
        must, do = f"request episodes of {request.env}, task {request.index}", "change only group_size, hint or start"
        raise InvalidInput.of("extension", must, got, where="allocator", do=do)
