"""Models that write about episodes: a skill that an episode teaches, or what it looked up as knowledge of one's own."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from envgym.core.json_types import JsonValue, visible
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.core.turns import Scored
from envgym.errors import InfrastructureError, check_known
from envgym.trainer.methods.annotators.base import AnnotateContext, annotate_trees
from envgym.trainer.methods.annotators.judge import DefaultTemplate, JudgeSettings, nonsense, transcript
from envgym.verifiers.f1 import words

SKILL_TEMPLATE = """\
Below are a task and what an assistant did, with what it earned (1 is a success). Write a short skill for tasks like it,
in three parts: what worked, what went wrong, and the workflow that should be followed. Do not give the answer away.

[Task]
{task}

[Assistant]
{transcript}
"""
REWRITE_TEMPLATE = """\
Below are a question and how an assistant answered it by searching. Write down the way to the answer as if all that the
search found had been known before: no calls, no pages, only the facts and what follows from them, and the answer last,
between <answer> and </answer>.

[Question]
{task}

[Assistant]
{transcript}
"""


class Writer(JudgeSettings, ABC):
    """Keeps the words of a model about every valid episode that earned enough, as the `verdict` of an annotation."""

    min_reward: float | None = None
    """Least reward of the episodes that are written about; null: all are."""

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        episodes = [item for item in group.valid if self.min_reward is None or _reward(item) >= self.min_reward]
        written = await asyncio.gather(*[self._annotation(context, episode) for episode in episodes])
        by_tree: dict[str, list[Annotation]] = {}
        for episode, annotation in zip(episodes, written, strict=True):
            by_tree.setdefault(episode.tree.id, []).append(annotation)
        return annotate_trees(group, by_tree)

    async def _annotation(self, context: AnnotateContext, episode: Trajectory) -> Annotation:
        episode_text = f"{transcript(episode)}\n\n[Earned]\n{_reward(episode):g}"
        prompt = self.fill(context.task, "", episode_text)
        value, text, error = None, "", None
        try:
            text = visible((await self.ask(context.models, prompt, episode.tree.id, episode.leaf)).strip())
            if not text:
                raise nonsense(text, "hold some words")
            value = self.value(text, episode, context.task)
        except InfrastructureError as failure:
            error = visible(str(failure))
        return Annotation(name=self.name, level="episode", node=episode.leaf, value=value, verdict=text, error=error)

    @abstractmethod
    def value(self, text: str, episode: Trajectory, task: Task) -> float:
        """Return the annotation's value."""


class SkillWriter(Writer):
    """Write a skill from every episode, whose value is the episode's reward; the curriculum `skill_bank` uses it.

    Source: 2604.10674 (Skill-SD): what worked, what went wrong, the workflow. The prompt is ours.
    """

    default_template: ClassVar[DefaultTemplate] = DefaultTemplate(SKILL_TEMPLATE, SKILL_TEMPLATE)
    name: str = "skill"
    """Of the annotations."""
    model: str = "writer"
    """Which of the run's `models` is asked."""

    def value(self, text: str, episode: Trajectory, task: Task) -> float:
        del text, task
        return _reward(episode)


class Rewriter(Writer):
    """Rewrite successful episodes as if nothing had been retrieved; 1 where an accepted answer is in the text, else 0.

    The demonstrations `rewritten` let the policy imitate the texts of value 1, and so memorise what it found.
    Source: 2505.17005 (R1-Searcher++). The prompt is ours.
    """

    default_template: ClassVar[DefaultTemplate] = DefaultTemplate(REWRITE_TEMPLATE, REWRITE_TEMPLATE)
    reads_reference: ClassVar[bool] = True
    name: str = "rewrite"
    """Of the annotations."""
    model: str = "writer"
    """Which of the run's `models` is asked."""
    min_reward: float | None = 1.0
    """Least reward of the episodes that are rewritten; null: all are."""

    def value(self, text: str, episode: Trajectory, task: Task) -> float:
        """Return whether an accepted answer is in the text. Raises: InvalidInput: the task has none."""
        del episode
        check_known("payload key", self.reference_key, list(task.payload), where=f"task {task.id}")
        return float(covers(text, task.payload[self.reference_key]))


def covers(text: str, accepted: JsonValue) -> bool:
    """Return whether the words of an accepted answer, or of one of several, stand in a row in a text."""
    answers = accepted if isinstance(accepted, list) else [accepted]
    spaced_words = f" {' '.join(words(text))} "
    return any(f" {' '.join(words(str(answer)))} " in spaced_words for answer in answers if words(str(answer)))


def _reward(episode: Trajectory) -> float:
    assert isinstance(episode.reward, Scored), "of a valid episode"
    return episode.reward.value
