"""`best_of`: whole episodes from the start, of which the best is the answer. No env needs to be forked for it.

By the majority of the answers it is self-consistency. Source: 2203.11171.
"""

from typing import ClassVar

from pydantic import Field

from envgym.agents.search.engine import SearchTree
from envgym.agents.search.protocol import TreeStrategy, run_concurrently
from envgym.agents.search.scorers import score_answers


class BestOf(TreeStrategy):
    """Sample n episodes and choose. In training the best `group_size` of them are the group, in one tree."""

    name: ClassVar[str] = "best_of"
    bound: ClassVar[str] = "n"
    is_forking: ClassVar[bool] = False
    n: int | None = Field(default=8, ge=1)
    """Episodes; at least as many as a group has. null: until the budget is spent, or episodes spend nothing of it."""
    parallel: int = Field(default=8, ge=1)
    """With n=null: most episodes that begin at a time; the first runs alone, to measure what one costs."""

    async def expand(self, tree: SearchTree, *, leaves: int | None) -> None:
        """Run the episodes side by side, and keep the best `leaves`."""
        if self.n is not None:
            await self._run_episodes(tree, max(self.n, leaves or 0))
        else:
            used = None
            while not tree.is_stopped and used != tree.tracker.used:
                used = tree.tracker.used
                await self._run_episodes(tree, self._affordable(tree))
        if leaves is not None and len(tree.finished_branches) > leaves:
            scores = await score_answers(tree.finished_branches, self.answer_scorer)
            order = sorted(range(len(scores)), key=lambda index: -scores[index])
            for index in order[leaves:]:
                tree.finished_branches[index].pruned = f"not among the {leaves} best by {self.selection.by}"

    def _affordable(self, tree: SearchTree) -> int:
        """Return how many episodes of the mean cost so far the budget still holds, 1 to `parallel`.

        More would share what is left turn by turn, and none of them might come to an end.
        """
        used = tree.tracker.share_used
        if not tree.branches or not used:
            return 1
        return max(1, min(self.parallel, int((1 - used) / used * len(tree.branches))))

    async def _run_episodes(self, tree: SearchTree, count: int) -> None:
        assert tree.root is not None, "the tree has begun"
        branches = [tree.add_branch(tree.root) for _ in range(count)]
        await run_concurrently([tree.run(branch) for branch in branches])
