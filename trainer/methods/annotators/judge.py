"""A judge's verdict on every episode, or on every turn: a prompt as data, and the words that count as verdicts."""

import asyncio
import string
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from envgym.core.json_types import visible
from envgym.core.messages import Message, Role
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.errors import InfrastructureError, InvalidInput, PartyFailure, check_known, unknown_name
from envgym.seeds import derive_seed
from envgym.settings import Settings
from envgym.trainer.methods.annotators.base import AnnotateContext, ChatModel, annotate_trees

FIELDS = ("task", "transcript", "answer", "reference")
"""What a template may name: the task's prompt, the turns, the last action, and the task's hidden answer."""
EPISODE_TEMPLATE = """\
You judge whether an assistant solved a task. Below are the task, the reference answer, and the assistant's last words.

[Task]
{task}

[Reference answer]
{reference}

[Assistant]
{answer}

Does the assistant give the reference answer? Words that give no answer do not. Reply with YES or NO alone.
"""
_SHOWN = 120


class JudgeSettings(Settings):
    """What every annotator that asks a judge is told."""

    name: str = "judge"
    """Of the annotations."""
    model: str = "judge"
    """Which of the run's `models` is asked."""
    template: str = EPISODE_TEMPLATE
    """The prompt; `{task}`, `{transcript}`, `{answer}` and `{reference}` are filled in, `{{` is a brace."""
    reference: str = "answer"
    """Key of the hidden answer in a task's payload; used where the template names `{reference}`."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Most tokens of the judge's reply."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        for name in template_fields(template):
            if name not in FIELDS:
                raise unknown_name("field", name, FIELDS, where="template")
        return template

    def required_models(self) -> dict[str, type]:
        """Return the judge: it must answer conversations."""
        return {self.model: ChatModel}

    def prompt(self, episode: Trajectory, task: Task, *, num_turns: int | None = None) -> str:
        """Return the judge's prompt for an episode, or for its first turns.

        Raises: InvalidInput: the template names a reference that the task lacks.
        """
        outcomes = [turn.outcome for turn in episode.turns[:num_turns] if turn.outcome is not None]
        answer = "".join(str(outcome.action) for outcome in outcomes[-1:])
        return self.fill(task, answer, transcript(episode, num_turns))

    def fill(self, task: Task, answer: str, words: str) -> str:
        """Return the judge's prompt for an answer and the transcript that leads to it. Raises: as `prompt`."""
        values = {"task": task.prompt, "transcript": words, "answer": answer}
        if "reference" in template_fields(self.template):
            values["reference"] = reference_answer(task, self.reference)
        return self.template.format_map(values)

    async def ask(self, models: Mapping[str, object], prompt: str, *seed: int | str) -> str:
        """Return the judge's reply. Raises: InfrastructureError: it gave none."""
        judge = models[self.model]
        assert isinstance(judge, ChatModel), "checked before the run began"
        messages = [Message(role=Role.USER, content=prompt)]
        return await judge.reply(
            messages, seed=derive_seed("annotate", self.name, *seed), max_new_tokens=self.max_new_tokens
        )


class Judge(JudgeSettings):
    """Ask about every valid episode, or every turn of one, and take the number of the verdict in the last line.

    A turn that several episodes of a tree share is judged once. A reply without a verdict is an error, never a zero.
    """

    level: Literal["episode", "turn"] = "episode"
    """What is judged; of a turn the prompt holds all up to the env's reply to it."""
    verdicts: Mapping[str, float] = Field(default={"YES": 1.0, "NO": 0.0}, min_length=1)
    """Word, in any case -> value."""

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        """Return the group with the verdicts."""
        places: dict[tuple[str, int], tuple[Trajectory, int | None]] = {}
        for episode in group.valid:
            if self.level == "episode":
                places[episode.tree.id, episode.leaf] = (episode, None)
            else:
                for turn in episode.turns:
                    places.setdefault((episode.tree.id, turn.nodes[-1]), (episode, turn.index + 1))
        found = await asyncio.gather(*[self._annotation(context, place, *of) for place, of in places.items()])
        return annotate_trees(
            group,
            {
                tree.id: [item for (of, _), item in zip(places, found, strict=True) if of == tree.id]
                for tree in group.trees
            },
        )

    async def _annotation(
        self, context: AnnotateContext, place: tuple[str, int], episode: Trajectory, num_turns: int | None
    ) -> Annotation:
        prompt = self.prompt(episode, context.task, num_turns=num_turns)
        value, words, error = None, "", None
        try:
            words = await self.ask(context.models, prompt, *place)
            value = read_verdict(words, self.verdicts)
        except InfrastructureError as failure:
            error = visible(str(failure))
        return Annotation(
            name=self.name, level=self.level, node=place[1], value=value, verdict=visible(words), error=error
        )


def read_verdict(reply: str, verdicts: Mapping[str, float]) -> float:
    """Return the value of the verdict that the last line of a reply is. Raises: PartyFailure: it is none."""
    last = reply.strip().rpartition("\n")[2].strip(string.whitespace + string.punctuation).casefold()
    by_word = {word.strip(string.punctuation).casefold(): value for word, value in verdicts.items()}
    if last not in by_word:
        raise nonsense(reply, f"end with one of {', '.join(verdicts)}")
    return by_word[last]


def nonsense(reply: str, must: str) -> PartyFailure:
    """Return the failure of a judge whose reply cannot be read."""
    do = "correct the template, or choose another judge"
    return PartyFailure.of("the judge's reply", must, visible(reply[-_SHOWN:]) or "nothing", where="judge", do=do)


def transcript(episode: Trajectory, num_turns: int | None = None) -> str:
    """Return the first turns of an episode, or all, as a person reads them."""
    parts: list[str] = []
    for turn in episode.turns[:num_turns]:
        if turn.outcome is not None:
            parts.append(f"[Turn {turn.index + 1}]\n{turn.outcome.action}")
            if turn.outcome.observation:
                parts.append(f"[Reply]\n{turn.outcome.observation}")
    return "\n\n".join(parts)


def reference_answer(task: Task, key: str) -> str:
    """Return the hidden answer of a task. Raises: InvalidInput: it has none; its keys are listed."""
    check_known("payload key", key, list(task.payload), where=f"task {task.id}")
    answer = str(task.payload[key])
    InvalidInput.unless(
        answer, "reference answer", "be some text", "nothing", where=f"task {task.id}", do="name another key"
    )
    return answer


def template_fields(template: str) -> list[str]:
    """Return the names that a template has filled in."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
