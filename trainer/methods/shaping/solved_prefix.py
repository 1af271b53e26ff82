"""SCRL's rewards: what a turn earns counts only while all before it were solved."""

from dataclasses import replace

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.core.turns import Reward, Scored, reaches
from envgym.trainer.methods.shaping.rewards import with_rewards


class SolvedPrefix(Settings):
    """Set the rewards of all turns after the first that earned less than `solved_at` to 0.

    For tasks in which turn k answers subproblem k, the last of which is the task itself: progress is the length of the
    solved prefix. With `credit.name=scrl` each position is then compared by itself. Source: 2605.22074, from an
    exposition by others; its subproblems are answered in one message, here one a turn (the wrapper `horizon`).
    """

    solved_at: float = 1.0
    """What a turn earns that solves its subproblem."""

    def __call__(self, group: Group) -> Group:
        return replace(group, trees=tuple(with_rewards(tree, self._rewards(tree)) for tree in group.trees))

    def _rewards(self, tree: Tree) -> dict[int, Reward]:
        is_unsolved = [False] * len(tree.nodes)
        changed: dict[int, Reward] = {}
        for index, node in enumerate(tree.nodes):
            below = node.parent is not None and is_unsolved[node.parent]
            reward = None if node.outcome is None else node.outcome.reward
            if below and isinstance(reward, Scored) and reward.value:
                changed[index] = replace(reward, value=0.0)
            is_unsolved[index] = below or (isinstance(reward, Scored) and not reaches(reward.value, self.solved_at))
        return changed
