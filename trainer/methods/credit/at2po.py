"""AT2PO: outcomes standardised in the tree and backed up, with more weight for uncertain children."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.outcome import EPSILON, episode_rewards
from envgym.trainer.methods.credit.paths import ROOT, GroupTree, NodeKey
from envgym.trainer.methods.protocols import GroupCredit, TrajectoryCredit


class At2po(GroupCredit):
    """Back up values: A(n) = V(n), V(leaf) = (r - mean r) / (std r + 1e-6), std of the population of leaves.

    Inside, V(n) = Σ_c softmax_c(H(c)) V(c) over the children, H(c) the mean surprisal of what was sampled on the
    child's edge, in nats: a child that the policy was less sure of weighs more. All trees of a group share the
    prompt and are one tree here (the paper has one a task). A node is trained in each row through it, so train shared
    tokens `per_path`. Chains with the default get GRPO's advantages, but for the deviation.

    Source: 2601.04767 and its code, in which GRPO on rows (`credit.name=grpo`) is the form `vanilla`. A node is the
    prefix after an edge: a turn, or a part of one where a search has forked inside it.
    """

    advantage: Literal["node_value", "diff_parent", "diff_global", "diff_localglobal"] = "node_value"
    """V(n); V(n) - V(parent); V(n) - V(root); or the sum of both differences."""
    value: Literal["child_softmax", "child_mean", "leaf_mean"] = "child_softmax"
    """How V of an inner node is made: weighted children, their mean, or the mean of the leaves below."""
    standardise: bool = True
    """Standardise the leaves' rewards; False: V(leaf) = r."""

    def __call__(self, group: Group) -> tuple[TrajectoryCredit, ...]:
        """Return one credit per valid episode; a group of one gets 0."""
        backup = _Backup(group_tree=GroupTree(group=group), method=self)
        values, parents = backup.values, backup.parents
        counts = len(group.valid) > 1

        def advantage(node: NodeKey) -> float:
            local, whole = values[node] - values[parents[node]], values[node] - values[ROOT]
            match self.advantage:
                case "node_value":
                    return values[node]
                case "diff_parent":
                    return local
                case "diff_global":
                    return whole
                case "diff_localglobal":
                    return local + whole

        return backup.group_tree.credits(lambda node: advantage(node) if counts else 0.0)


@dataclass(frozen=True, kw_only=True)
class _Backup:
    group_tree: GroupTree
    method: At2po

    @cached_property
    def parents(self) -> dict[NodeKey, NodeKey]:
        return {below: above for path in self.group_tree.paths for above, below in pairwise(path)}

    @cached_property
    def leaf_values(self) -> list[float]:
        """V of every valid episode's leaf."""
        rewards = episode_rewards(self.group_tree.group)
        if not self.method.standardise or not rewards:
            return rewards
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        return [(reward - mean) / (deviation + EPSILON) for reward in rewards]

    @cached_property
    def values(self) -> dict[NodeKey, float]:
        """V of every node, children before their parents."""
        values = {path[-1]: value for path, value in zip(self.group_tree.paths, self.leaf_values, strict=True)}
        for node in sorted(self.group_tree.children, key=lambda node: (node != ROOT, node[1]), reverse=True):
            children = self.group_tree.children[node]
            if len(children) == 1:
                values[node] = values[children[0]]
            elif self.method.value == "leaf_mean":
                numbers = self.group_tree.episodes_through[node]
                values[node] = statistics.fmean(self.leaf_values[number] for number in numbers)
            else:
                weights = self._weights(children)
                values[node] = sum(weight * values[child] for weight, child in zip(weights, children, strict=True))
        return values

    def _weights(self, children: Sequence[NodeKey]) -> list[float]:
        """Return the weight of each child; they sum to 1."""
        if self.method.value == "child_mean":
            return [1.0 / len(children)] * len(children)
        surprisals = [self._surprisal(child) for child in children]
        most = max(surprisals)
        weights = [math.exp(surprisal - most) for surprisal in surprisals]
        return [weight / sum(weights) for weight in weights]

    def _surprisal(self, node: NodeKey) -> float:
        """Return H: the mean of -log p over the sampled tokens of the node's edge; 0 where there are none."""
        number, index = node
        segments = self.group_tree.group.trees[number].nodes[index].edge.segments
        logprobs = [value for segment in segments for value in segment.behavior_logprobs or ()]
        return -statistics.fmean(logprobs) if logprobs else 0.0
