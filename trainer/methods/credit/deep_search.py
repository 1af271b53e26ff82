"""DeepSearch: the outcomes that a search backed up to a node, softly clipped."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from envgym.core.trajectory import Group, Trajectory
from envgym.core.turns import reaches
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.credit.paths import GroupTree, NodeKey
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit
from envgym.trainer.methods.requirements import Choices, Fault

LEAST_WEIGHT = 0.1
"""Of a leaf on nodes far above it."""


class DeepSearch(GroupCredit):
    """Back up and clip: A(n) = tanh(q(n)/T) q_max - mean of the leaves' q; a leaf's own q is not clipped.

    A correct leaf adds w to the nodes of its path, a wrong one subtracts it, w = max(depth / length, 0.1), so w is 1 at
    the leaf. Where both meet, the correct ones alone count: a node on a correct path stays positive. A node through
    which nothing is backed up has q = 0. A group of one gets 0.

    Source: 2509.25454; depth counts nodes, where the authors count chunks of equal length.
    """

    temperature: float = Field(default=1.0, gt=0)
    """T: the higher, the nearer to linear."""
    ceiling: float = Field(default=1.0, gt=0)
    """The clip q_max."""
    success_at: float = 1.0
    """An episode is correct when its reward is at least this."""
    wrong: Literal["all", "most_confident"] = "all"
    """Which wrong leaves are backed up: all of them; or, in a tree without a correct one, only the leaf whose sampled
    tokens have the least mean surprisal, as in a round of the authors' search."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require a search that backs up values to the nodes inside episodes."""
        holds = all(getattr(choices.search, name, True) for name in ("is_forking", "backs_up_values"))
        must = "be used with search mcts, which backs up the values that it uses"
        got, do = f"search {choices.names['search']}", "set search.name=mcts"
        return Fault.unless(holds, "credit deep_search", must, got, do)

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        group_tree = GroupTree(group=group)
        correct = [reaches(reward, self.success_at) for reward in episode_rewards(group)]
        backed: dict[NodeKey, dict[bool, float]] = {}
        counted = self._counted(group_tree, correct)
        for is_correct, path in ((correct[number], group_tree.paths[number]) for number in counted):
            for depth, node in enumerate(path[1:], start=1):
                sums = backed.setdefault(node, {})
                sums[is_correct] = sums.get(is_correct, 0.0) + max(depth / (len(path) - 1), LEAST_WEIGHT)
        score = dict.fromkeys((node for path in group_tree.paths for node in path), 0.0)
        for node, sums in backed.items():
            backed_up = sums[True] if True in sums else -sums[False]
            score[node] = math.tanh(backed_up / self.temperature) * self.ceiling
        for is_correct, path in zip(correct, group_tree.paths, strict=True):
            score[path[-1]] = 1.0 if is_correct else -1.0
        mean = statistics.fmean(score[path[-1]] for path in group_tree.paths) if correct else 0.0
        counts = len(correct) > 1
        return group_tree.credits(lambda node: score[node] - mean if counts else 0.0)

    def _counted(self, group_tree: GroupTree, correct: Sequence[bool]) -> list[int]:
        if self.wrong == "all":
            return list(range(len(correct)))
        episodes, of_tree = group_tree.group.valid, dict[int, list[int]]()
        for number, tree in enumerate(group_tree.tree_numbers):
            of_tree.setdefault(tree, []).append(number)
        counted: list[int] = []
        for numbers in of_tree.values():
            right = [number for number in numbers if correct[number]]
            counted += right or [min(numbers, key=lambda number: mean_surprisal(episodes[number]))]
        return counted


def mean_surprisal(episode: Trajectory) -> float:
    """Return the mean of -log p of an episode's sampled tokens, in nats, as they were sampled; 0 without a token."""
    segments = [segment for turn in episode.turns for segment in turn.segments]
    logprobs = [value for segment in segments for value in segment.behavior_logprobs or ()]
    return -statistics.fmean(logprobs) if logprobs else 0.0
