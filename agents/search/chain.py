"""`chain`: independent episodes of one task, each a tree with one leaf. What GRPO samples."""

import time
from dataclasses import replace

from pydantic import Field

from envgym.agents.agent import Agent
from envgym.agents.driver import run_episodes
from envgym.agents.episode import Clock, EpisodeJob
from envgym.agents.protocols import Policy, Sampling
from envgym.core.tree import Tree
from envgym.seeds import derive_seed
from envgym.settings import Settings


class Chain(Settings):
    """Sample every member from the start."""

    group_size: int = Field(ge=1)
    """Episodes."""

    def jobs(self, job: EpisodeJob) -> list[EpisodeJob]:
        """Return one job per member: they begin alike, and differ in what the policy samples.

        Jobs of many groups may run together; member k of tree id `t` has the tree id `t/k`.
        """
        return [
            replace(
                job,
                policy_seed=derive_seed(job.sampling_seed, "member", member),
                tree_id=f"{job.tree_id}/{member:02d}",
            )
            for member in range(self.group_size)
        ]

    async def grow(
        self,
        job: EpisodeJob,
        agent: Agent,
        policy: Policy,
        *,
        sampling: Sampling,
        clock: Clock = time.perf_counter,
    ) -> tuple[Tree, ...]:
        """Run all members at once and return their trees in order."""
        trees = await run_episodes(
            self.jobs(job), agent, policy, sampling=sampling, concurrency=self.group_size, clock=clock
        )
        return tuple(trees)
