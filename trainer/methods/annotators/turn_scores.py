"""What a model of the run gives every turn: implicit process rewards, or the advantages of an utterance critic."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pydantic import Field

from envgym.config.settings import Settings
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees


@runtime_checkable
class TurnScorer(Protocol):
    """A named model that gives every turn of an episode a number, from what the policy sampled."""

    async def score_turns(self, episodes: Sequence[Trajectory]) -> Sequence[Sequence[float]]:
        """Return one number per turn of each episode."""
        ...


class TurnScores(Settings):
    """Write the model's number on every turn of the valid episodes; a turn that episodes share has that of the first.

    For the first `warmup` steps every number is 0, so that a policy that learns from them alone stands still while the
    model begins to learn.
    """

    model: str
    """Which of the run's `models` gives the numbers; the annotations have its name."""
    warmup: int = Field(default=0, ge=0)
    """Train steps before the numbers count."""

    @property
    def name(self) -> str:
        """Of the annotations: the model's."""
        return self.model

    def required_models(self) -> dict[str, type]:
        """Return the model: it must score turns."""
        return {self.model: TurnScorer}

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        scorer = context.models[self.model]
        assert isinstance(scorer, TurnScorer), "checked before the run began"
        annotations: dict[str, dict[int, Annotation]] = {tree.id: {} for tree in group.trees}
        scores = await scorer.score_turns(group.valid)
        for episode, of_turns in zip(group.valid, scores, strict=True):
            for turn, score in zip(episode.turns, of_turns, strict=True):
                value = 0.0 if context.step < self.warmup else score
                annotation = Annotation(name=self.name, level="turn", node=turn.nodes[-1], value=value)
                annotations[episode.tree.id].setdefault(turn.nodes[-1], annotation)
        return annotate_trees(group, {tree_id: items.values() for tree_id, items in annotations.items()})
