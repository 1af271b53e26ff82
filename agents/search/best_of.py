"""`best_of`: whole episodes from the start, of which the best is the answer. No env needs to be forked for it.

By the majority of the answers it is self-consistency. Source: 2203.11171.
"""

from typing import Any, ClassVar

from pydantic import Field

from envgym.agents.agent import AgentSettings
from envgym.agents.search.base import TreeStrategy, together
from envgym.agents.search.growth import Growth
from envgym.env import Env
from envgym.errors import SettingsError, sentence


class BestOf(TreeStrategy):
    """Sample n episodes and choose. In training the best `group_size` of them are the group, in one tree."""

    name: ClassVar[str] = "best_of"
    is_forking: ClassVar[bool] = False
    n: int | None = Field(default=8, ge=1)
    """Episodes; at least as many as a group has. None: until the budget is spent, or episodes spend nothing of it."""
    width: int = Field(default=8, ge=1)
    """With n=None: most episodes that begin together; the first is played alone, to see what one costs."""

    def check(self, env: Env[Any], agent: AgentSettings, *, group_size: int | None) -> None:
        """Refuse what cannot work. Raises: SettingsError."""
        if self.n is None and not self.budget.is_limited:
            do = "set its budget, such as budget.tokens_generated=4096"
            raise SettingsError(sentence("n=None", "go with a budget", "none", where=self.name, do=do))
        super().check(env, agent, group_size=group_size)

    def num_trees(self, group_size: int) -> int:
        """Return 1: all episodes have one root. Raises: SettingsError: a group of one."""
        if group_size < 2:
            do = "set rollout.group_size to at least 2"
            raise SettingsError(sentence("group", "hold at least 2 episodes", group_size, where=self.name, do=do))
        return 1

    async def expand(self, growth: Growth, *, leaves: int | None) -> None:
        """Play the episodes side by side, and keep the best `leaves`."""
        if self.n is not None:
            await self._play(growth, max(self.n, leaves or 0))
        else:
            used = None
            while not growth.purse.is_empty and used != growth.purse.used:
                used = growth.purse.used
                await self._play(growth, self._affordable(growth))
        if leaves is not None and len(growth.leaves) > leaves:
            scores = await self.signal()(growth.leaves)
            order = sorted(range(len(scores)), key=lambda place: -scores[place])
            for place in order[leaves:]:
                growth.leaves[place].pruned = f"not among the {leaves} best by {self.select}"

    def _affordable(self, growth: Growth) -> int:
        """Return how many episodes of the mean cost so far the budget still holds, 1 to `width`.

        More would share what is left turn by turn, and none of them might come to an end.
        """
        used = growth.purse.share_used
        if not growth.branches or not used:
            return 1
        return max(1, min(self.width, int((1 - used) / used * len(growth.branches))))

    async def _play(self, growth: Growth, count: int) -> None:
        assert growth.root is not None, "the tree has begun"
        branches = [growth.branch(growth.root) for _ in range(count)]
        await together([growth.play(branch) for branch in branches])
