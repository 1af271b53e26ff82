"""A scorer's value after every turn: a process reward that a trained critic, or a model of your own, gives."""

from itertools import pairwise
from typing import Literal, NamedTuple

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Row, Trajectory
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import AnnotateContext, ValueModel, annotate_trees


class ProcessReward(Settings):
    """Write V(prefix after the turn) on every turn of the valid episodes; of the last turn, V of the finished episode.

    With `reward: gain` it is V_t - V_{t-1}, V_0 that of the prompt: the values of an episode then add up to V_T - V_0.
    """

    name: str = "process"
    """Of the annotations."""
    model: str = "scorer"
    """Which of the run's `models` gives the values."""
    reward: Literal["value", "gain"] = "value"
    """The value itself, or what the turn added to it."""

    def required_models(self) -> dict[str, type]:
        """Return the scorer: it must say what is expected of prefixes."""
        return {self.model: ValueModel}

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with the values; a turn that episodes share is scored once."""
        scorer = context.models[self.model]
        assert isinstance(scorer, ValueModel), "checked before the run began"
        paths = [(episode.tree.id, turn_prefixes(episode)) for episode in group.valid]
        prefixes = {(tree_id, item.node): item for tree_id, path in paths for item in path}
        queries = list(prefixes.values())
        values = await scorer.compute_values([item.token_ids for item in queries], [item.is_over for item in queries])
        by_place = dict(zip(prefixes, values, strict=True))
        annotations: dict[str, dict[int, Annotation]] = {tree.id: {} for tree in group.trees}
        for tree_id, path in paths:
            for before, item in pairwise(path):
                value = by_place[tree_id, item.node]
                if self.reward == "gain":
                    value -= by_place[tree_id, before.node]
                annotations[tree_id][item.node] = Annotation(name=self.name, level="turn", node=item.node, value=value)
        return annotate_trees(group, {tree_id: items.values() for tree_id, items in annotations.items()})


class TurnPrefix(NamedTuple):
    """What a scorer is shown of an episode."""

    node: int
    """At which the turn ends; the root for the prompt."""
    token_ids: tuple[int, ...]
    """As the policy had them, the env's reply included; of the last turn, up to what was sampled last."""
    is_over: bool


def turn_prefixes(episode: Trajectory) -> list[TurnPrefix]:
    """Return the prompt, and the prefix after every turn of an episode."""
    ends = {node: (row, place + 1) for row in episode.rows for place, node in enumerate(row.nodes)}
    prefixes = [TurnPrefix(0, _cut(*ends[0], is_over=False), is_over=False)] if 0 in ends else []
    for turn in episode.turns:
        row, end = next(ends[node] for node in reversed(turn.nodes) if node in ends)
        is_over = turn.nodes[-1] == episode.leaf
        prefixes.append(TurnPrefix(turn.nodes[-1], _cut(row, end, is_over=is_over), is_over))
    return prefixes


def _cut(row: Row, end: int, *, is_over: bool) -> tuple[int, ...]:
    while is_over and end > 1 and not row.loss_mask[end - 1]:
        end -= 1
    return row.token_ids[:end]
