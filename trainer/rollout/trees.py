"""The trees of groups: what one is grown from, and how, in the run's process or in a rollout worker.

The numbers of a tree derive from its order and the seed of the run, so they do not depend on the process that grows it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.reissue import grow_or_reissue
from envgym.agents.search import Chain, RolloutContext, Strategy
from envgym.core.tasks import Task
from envgym.core.tree import Tree
from envgym.seeds import derive_seed
from envgym.trainer.env_source import EnvSource
from envgym.trainer.methods.protocols import TaskRequest


def group_key(step: int, number: int) -> str:
    """Name a group after the train step that it is for, counted from 1 as in all records; `step` are done before."""
    return f"step-{step + 1:06d}/{number:03d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOrder:
    """One tree of a group that is to be grown."""

    request: TaskRequest
    """Of the group; its task is `task`."""
    task: Task
    step: int
    """Train steps done before the one that the group is for."""
    number: int
    """Of the group among those of its step."""
    index: int
    """Of the tree in its group."""

    @property
    def group_key(self) -> str:
        return group_key(self.step, self.number)

    @property
    def tree_id(self) -> str:
        return f"{self.group_key}/{self.index:02d}"


GrowTree = Callable[[TreeOrder, AbortHandle], Awaitable[Tree]]
"""Grows a tree; it ends soon after the handle is aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrower:
    """Grows trees in this process."""

    env_sources: Mapping[str, EnvSource]
    """Of the mixture, by label."""
    context: RolloutContext
    """Its sampling is used for requests that name none."""
    search: Strategy
    """Not used for requests that are `direct`."""
    seed: int
    """Of the run."""

    async def __call__(self, order: TreeOrder, abort: AbortHandle) -> Tree:
        """Grow a tree. Raises: the error of a rollout that could not become an ending."""
        request, context = order.request, self.context
        search = Chain() if request.direct else self.search
        if request.sampling is not None:
            context = replace(context, sampling=request.sampling)

        async def grow_once(job: EpisodeJob) -> Tree:
            return await search.grow_tree(job, context, group_size=request.group_size, abort=abort)

        return await grow_or_reissue(self._job(order), grow_once, abort)

    def _job(self, order: TreeOrder) -> EpisodeJob:
        """Return the job of a tree; the trees of a group share task and env seed, and sample differently."""
        request, env_source = order.request, self.env_sources[order.request.env]
        names = (self.seed, "step", order.step, order.number, request.env, request.index)
        return EpisodeJob(
            make_env=env_source.make,
            task=order.task,
            seed=derive_seed(*names, "env") if request.start is None else request.start.tree.seed,
            policy_seed=derive_seed(*names, "policy", order.index),
            tree_id=order.tree_id,
            env_id=env_source.env_id,
            start=request.start,
            hint=request.hint,
            prompts=request.prompts,
        )
