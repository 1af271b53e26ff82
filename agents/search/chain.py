"""`chain`: independent episodes of one task, each a tree with one branch. What GRPO samples."""

from typing import Any, ClassVar

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.search.engine import RolloutContext
from envgym.config.settings import Settings
from envgym.core.tree import Tree
from envgym.env import Env


class Chain(Settings):
    """Sample every episode of a group from the start."""

    grows_trees: ClassVar[bool] = False
    is_forking: ClassVar[bool] = False

    @property
    def selection(self) -> None:
        """There is nothing to choose."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Accept everything: no episode needs another."""

    def num_trees(self, group_size: int) -> int:
        return group_size

    async def grow_tree(
        self, job: EpisodeJob, context: RolloutContext, *, group_size: int, abort: AbortHandle | None = None
    ) -> Tree:
        abort = abort or AbortHandle()
        async with context.hold_slot(abort):
            return await run_episode(
                job, context.agent, context.policy, sampling=context.sampling, clock=context.clock, abort=abort
            )

    async def answer(self, job: EpisodeJob, context: RolloutContext) -> Tree:
        return await self.grow_tree(job, context, group_size=1)
