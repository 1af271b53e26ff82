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

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int) -> None:
        """Accept everything: no episode needs another."""

    async def grow(self, member: Member, crew: Crew, *, group_size: int) -> Grown:
        """Run all members side by side and return their trees in order."""

        async def one(job: EpisodeJob) -> Tree:
            async with crew.slots:
                return await run_episode(job, crew.agent, crew.policy, sampling=crew.sampling, clock=crew.clock)

        trees = await together([one(member(number)) for number in range(group_size)])
        return Grown(trees=tuple(trees), spent=sum((tree.cost for tree in trees), Cost()))
