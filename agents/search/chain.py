"""`chain`: independent episodes of one task, each a tree with one leaf. What GRPO samples."""

from typing import Any

from envgym.agents.agent import AgentSettings
from envgym.agents.driver import run_episode
from envgym.agents.episode import EpisodeJob
from envgym.agents.search.base import Grown, Member, together
from envgym.agents.search.growth import Crew
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.env import Env
from envgym.settings import Settings


class Chain(Settings):
    """Sample every member from the start."""

    @property
    def selection(self) -> None:
        """There is nothing to choose."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Accept everything: no episode needs another."""

    async def grow(self, member: Member, crew: Crew, *, group_size: int) -> Grown:
        """Run all members side by side and return their trees in order."""
        trees = await together([self.answer(member(number), crew) for number in range(group_size)])
        return Grown(trees=tuple(trees), spent=sum((tree.cost for tree in trees), Cost()))

    async def answer(self, job: EpisodeJob, crew: Crew) -> Tree:
        """Run one episode."""
        async with crew.slots:
            return await run_episode(job, crew.agent, crew.policy, sampling=crew.sampling, clock=crew.clock)
