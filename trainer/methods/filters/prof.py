"""PROF: within a group, episodes stay whose process agrees with their outcome."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.core.turns import is_success
from envgym.errors import InvalidInput
from envgym.trainer.methods.annotators.base import turn_values
from envgym.trainer.methods.protocols import FilterResult
from envgym.trainer.methods.requirements import Choices, Fault

DISAGREES = "process_disagrees"
NOT_ANNOTATED = "not_annotated"


class Prof(Settings):
    """Remove N of a group's episodes, those whose process rewards fit their outcome least. Source: 2509.03403.

    s_i = 2 · mean_h (p_h - m) · (2 r_i - 1), p_h the annotated value of turn h, m the mean over all turns of the batch,
    r_i 1 where the reward is at least `success_at`; minus `penalty` with fewer than `least` or more than `most` turns.
    Of the correct are removed k = min(N, round((n₊ - n₋ + N) / 2)), at least 0, of the wrong N - k, N = `remove`; each
    side loses its lowest s. This runs before credit, so that group statistics are those of the survivors.

    Where the paper and the authors' code differ, it is the code: the penalty is always subtracted. An episode without
    all of its values cannot be ranked, and is removed as `not_annotated`. Trees are chains: one episode each.
    """

    annotation: str = "process"
    """Name of the annotations on turns."""
    remove: int = Field(default=4, ge=0)
    """N of 8 in the paper; a group that would be left with fewer than 2 episodes is dropped whole."""
    success_at: float = 1.0
    """Reward from which an episode counts as correct."""
    least: int = Field(default=2, ge=0)
    """Fewest turns without a penalty."""
    most: int = Field(default=30, ge=1)
    """Most turns without a penalty."""
    penalty: float = Field(default=10.0, ge=0)
    """What too few or too many turns cost."""
    rewards: Literal["shaped", "env"] = "env"
    """Which rewards decide what is correct: those of the env, or those that train, after `shaping`."""

    def requires(self, choices: Choices) -> Fault | None:
        """Require groups of which two episodes remain, or an allocator that extends them."""
        size, remove, do = choices.rollout.group_size, self.remove, "raise it, or lower filter.remove"
        holds = not remove or size - remove >= 2 or choices.allocator is not None
        must = f"be at least filter.remove + 2 = {remove + 2} with filter prof, which removes {remove} of each group"
        return Fault.unless(holds, "rollout.group_size", must, size, do)

    def __call__(self, groups: Sequence[Group]) -> FilterResult:
        """Keep each group's survivors; what was removed of it is a dropped group of the same key."""
        values = [[turn_values(episode, self.annotation) for episode in group.valid] for group in groups]
        steps = [value for of_group in values for of_episode in of_group for value in of_episode or ()]
        mean = math.fsum(steps) / len(steps) if steps else 0.0
        remaining: list[Group] = []
        dropped: list[tuple[Group, str]] = []
        for group, of_group in zip(groups, values, strict=True):
            removed = self._removed(group, of_group, mean)
            survivors = [tree for tree in group.trees if tree.id not in removed]
            num_valid = sum(episode.tree.id not in removed for episode in group.valid)
            if not group.valid:
                dropped.append((group, "no_valid_episode"))
            elif num_valid < 2:
                dropped.append((group, NOT_ANNOTATED if NOT_ANNOTATED in removed.values() else DISAGREES))
            else:
                remaining.append(group if not removed else replace(group, trees=tuple(survivors)))
                for reason in sorted(set(removed.values())):
                    trees = tuple(tree for tree in group.trees if removed.get(tree.id) == reason)
                    dropped.append((replace(group, trees=trees), reason))
        return FilterResult(tuple(remaining), tuple(dropped))

    def _removed(self, group: Group, values: Sequence[tuple[float, ...] | None], mean: float) -> dict[str, str]:
        if any(len(tree.leaves) > 1 for tree in group.trees):
            do = "sample with search.name=chain"
            raise InvalidInput.of("tree", "hold one episode", "several", where=f"prof, group {group.key}", do=do)
        removed: dict[str, str] = {}
        ranked: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
        for episode, of_episode in zip(group.valid, values, strict=True):
            if of_episode is None:
                removed[episode.tree.id] = NOT_ANNOTATED
            else:
                is_correct = is_success(episode.reward, self.success_at)
                ranked[is_correct].append((self.agreement(of_episode, mean, is_correct=is_correct), episode.tree.id))
        counts = split_removals(len(ranked[True]), len(ranked[False]), self.remove)
        for is_correct, count in ((True, counts.correct), (False, counts.wrong)):
            lowest = sorted(ranked[is_correct], key=lambda item: item[0])[
                :count
            ]  # stable: the first of equals go first
            removed |= {tree_id: DISAGREES for _, tree_id in lowest}
        return removed

    def agreement(self, values: Sequence[float], mean: float, *, is_correct: bool) -> float:
        """Return s of an episode; of one without a turn, minus the penalty."""
        sign = 1.0 if is_correct else -1.0
        fit = 2 * sign * math.fsum(value - mean for value in values) / len(values) if values else 0.0
        return fit - (0.0 if self.least <= len(values) <= self.most else self.penalty)


class Removals(NamedTuple):
    """How many episodes of each side are removed."""

    correct: int
    wrong: int


def split_removals(num_correct: int, num_wrong: int, remove: int) -> Removals:
    """Return k = min(N, round((n₊ - n₋ + N) / 2)) of the correct, at least 0, and N - k of the wrong.

    What one side cannot give, the other does.
    """
    total = min(remove, num_correct + num_wrong)
    target = min(remove, round((num_correct - num_wrong + remove) / 2))
    correct = min(max(target, total - num_wrong, 0), num_correct, total)
    return Removals(correct, total - correct)
