"""TARL: a judge's verdict on every turn of a dialogue, summed into one number."""

import asyncio
import json
from collections.abc import Sequence
from typing import ClassVar, Final

from envgym.core.json_types import visible
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.errors import InfrastructureError
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees
from envgym.trainer.methods.annotators.judge import DefaultTemplate, JudgeSettings, nonsense

DEVIATION, PROBLEM, CORRECT = -1, 0, 1
_SCORES = """
Score each turn: -1 for the main deviation, of which there is at most one; 0 for a problem, or an error that follows
from an earlier one; 1 for a correct turn. Reply with one JSON list of the scores in the last line, a number for each
turn, in order.
"""
_WITH_REFERENCE = """\
You judge every turn of an assistant that was given a task. Below are the task, its reference answer, and the dialogue.

[Task]
{task}

[Reference answer]
{reference}

[Dialogue]
{transcript}
"""
_WITHOUT = """\
You judge every turn of an assistant that was given a task. Below are the task and the dialogue.

[Task]
{task}

[Dialogue]
{transcript}
"""
TEMPLATE: Final = DefaultTemplate(_WITH_REFERENCE + _SCORES, _WITHOUT + _SCORES)


class Tarl(JudgeSettings):
    """Ask a judge for s_t in {-1, 0, 1} of every turn of an episode, at most one of them -1. Source: 2509.14480.

    Writes s_t on the turns, and S = Σ_t s_t on the episode: rewards placed at the turns were unstable, so the paper's
    stable version sums them into one scalar, which `shaping.name=annotated` with `annotation: tarl` and `coef: 10`
    adds. A turn that several episodes of a tree share keeps the score of the first; S is of the episode's own reply.
    """

    default_template: ClassVar[DefaultTemplate] = TEMPLATE
    name: str = "tarl"
    """Of the annotations, on turns and episodes."""

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        of_episodes = await asyncio.gather(*[self._annotations(context, episode) for episode in group.valid])
        by_tree: dict[str, dict[tuple[str, int], Annotation]] = {tree.id: {} for tree in group.trees}
        for episode, annotations in zip(group.valid, of_episodes, strict=True):
            for item in annotations:
                by_tree[episode.tree.id].setdefault((item.level, item.node), item)
        return annotate_trees(group, {tree_id: items.values() for tree_id, items in by_tree.items()})

    async def _annotations(self, context: AnnotateContext, episode: Trajectory) -> list[Annotation]:
        prompt, words = self.prompt(episode, context.task), ""
        try:
            words = await self.ask(context.models, prompt, episode.tree.id, episode.leaf)
            scores = read_turn_scores(words, len(episode.turns))
        except InfrastructureError as failure:
            error = visible(str(failure))
            return [Annotation(name=self.name, level="episode", node=episode.leaf, value=None, error=error)]
        turns = [
            Annotation(name=self.name, level="turn", node=turn.nodes[-1], value=float(score))
            for turn, score in zip(episode.turns, scores, strict=True)
        ]
        total = float(sum(scores))
        whole = Annotation(name=self.name, level="episode", node=episode.leaf, value=total, verdict=visible(words))
        return [*turns, whole]


def read_turn_scores(reply: str, num_turns: int) -> Sequence[int]:
    """Return the scores of all turns from the last line of a reply. Raises: PartyFailure: it holds none such."""
    must = f"end with a JSON list of {num_turns} scores -1, 0 or 1, at most one of them -1"
    try:
        scores: object = json.loads(reply.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        raise nonsense(reply, must) from None
    if not isinstance(scores, list) or len(scores) != num_turns:
        raise nonsense(reply, must)
    if any(type(score) is not int or not DEVIATION <= score <= CORRECT for score in scores):
        raise nonsense(reply, must)
    if scores.count(DEVIATION) > 1:
        raise nonsense(reply, must)
    return scores
