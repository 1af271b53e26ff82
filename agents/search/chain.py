"""`chain`: independent episodes of one task, each a tree with one branch. What GRPO samples."""

from typing import Any, ClassVar

from envgym.agents.loop.agent import AgentSettings
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.agents.rollout.programs.auxiliary import read_keys
from envgym.agents.rollout.programs.episode import reload_program, run_program_episode
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
        """Accept every env, and every program that can be loaded and has its keys; this run uses it as it is now.

        Raises: InvalidInput: the program cannot be loaded, or a key is missing.
        """
        if agent.program is not None:
            reload_program(agent.program.run)
            read_keys(agent.program.auxiliary)

    def num_trees(self, group_size: int) -> int:
        return group_size

    async def grow_tree(
        self, job: EpisodeJob, context: RolloutContext, *, group_size: int, abort: AbortHandle | None = None
    ) -> Tree:
        abort = abort or AbortHandle()
        agent, policy, sampling, clock = context.agent, context.policy, context.sampling, context.clock
        async with context.hold_slot(abort):
            if agent.settings.program is None:
                return await run_episode(job, agent, policy, sampling=sampling, clock=clock, abort=abort)
            return await run_program_episode(job, agent, policy.generate, sampling=sampling, clock=clock, abort=abort)

    async def answer(self, job: EpisodeJob, context: RolloutContext) -> Tree:
        return await self.grow_tree(job, context, group_size=1)
