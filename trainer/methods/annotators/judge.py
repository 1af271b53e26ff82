"""A judge's verdict on every episode, or on every turn: a prompt as data, and the words that count as verdicts."""

import asyncio
import string
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from envgym.config.settings import Settings
from envgym.core.json_types import visible
from envgym.core.messages import Message, Role
from envgym.core.task_needs import TaskNeed
from envgym.core.tasks import Task
from envgym.core.trajectory import Group, Trajectory
from envgym.core.tree import Annotation
from envgym.errors import InfrastructureError, InvalidInput, PartyFailure, check_known, sentence
from envgym.seeds import derive_seed
from envgym.trainer.methods.annotators.base import AnnotateContext, ChatModel, annotate_trees
from envgym.verifiers.llm_judge import template_fields

FIELDS = ("task", "transcript", "answer", "reference")
"""What a template may name: the task's prompt, the turns, the last action, and the task's hidden answer."""
DEFAULT_REFERENCE: Final = "answer"
"""Key of the hidden answer in a task's payload."""


class DefaultTemplate(NamedTuple):
    """A prompt for tasks with a hidden answer, and one for tasks without."""

    with_reference: str
    without: str


_EPISODE_WITH_REFERENCE = """\
You judge whether an assistant solved a task. Below are the task, the reference answer, and the assistant's last words.

[Task]
{task}

[Reference answer]
{reference}

[Assistant]
{answer}

Does the assistant give the reference answer? Words that give no answer do not. Reply with YES or NO alone.
"""
_EPISODE_WITHOUT = """\
You judge whether an assistant solved a task. Below are the task and all that the assistant did.

[Task]
{task}

[Assistant]
{transcript}

Did the assistant solve the task? Words that do nothing do not. Reply with YES or NO alone.
"""
EPISODE_TEMPLATE: Final = DefaultTemplate(_EPISODE_WITH_REFERENCE, _EPISODE_WITHOUT)
_SHOWN = 120


class JudgeSettings(Settings):
    """What every annotator that asks a judge is told."""

    default_template: ClassVar[DefaultTemplate] = EPISODE_TEMPLATE
    """The prompt where `template` is null."""
    reads_reference: ClassVar[bool] = False
    """Whether the annotator reads the reference answer of every task, whatever its prompt."""
    name: str = "judge"
    """Of the annotations."""
    model: str = "judge"
    """Which of the run's `models` is asked."""
    template: str | None = None
    """The prompt; `{task}`, `{transcript}`, `{answer}` and `{reference}` are filled in, `{{` is a brace. Null: a prompt
    of ours, which shows the reference answer if the task has one."""
    reference: str | None = None
    """Key of the hidden answer in a task's payload, which every task must have; null: `answer`."""
    max_new_tokens: int = Field(default=512, ge=1)
    """Most tokens of the judge's reply."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | None) -> str | None:
        for name in template_fields(template or ""):
            check_known("field", name, FIELDS, where="template")
        return template

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        is_read = self.template is None or self._names_reference or self.reads_reference
        if self.reference is not None and not is_read:
            must, do = "be used with a template that names {reference}", "name it in the template, or leave it out"
            raise ValueError(sentence("reference", must, self.reference, where=f"annotate {self.name}", do=do))
        return self

    def required_models(self) -> dict[str, type]:
        """Return the judge: it must answer conversations."""
        return {self.model: ChatModel}

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the reference answer, unless the prompt does without it."""
        is_needed = self.reference is not None or self._names_reference or self.reads_reference
        do = "set the annotator's reference to one of these keys"
        if not self.reads_reference:
            do += ", or leave {reference} out of its template"
        return [reference_need(self.reference_key, do=do)] if is_needed else []

    @property
    def reference_key(self) -> str:
        """Key of the hidden answer in a task's payload."""
        return DEFAULT_REFERENCE if self.reference is None else self.reference

    @property
    def _names_reference(self) -> bool:
        return self.template is not None and "reference" in template_fields(self.template)

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
        template = self.template
        if template is None:
            has_reference = self.reference is not None or has_answer(task, self.reference_key)
            template = self.default_template.with_reference if has_reference else self.default_template.without
        if "reference" in template_fields(template):
            values["reference"] = reference_answer(task, self.reference_key)
        return template.format_map(values)

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
    """Word, in any case -> value; at least two values differ, because equal rewards train nothing."""

    @field_validator("verdicts")
    @classmethod
    def _check_verdicts(cls, verdicts: Mapping[str, float]) -> Mapping[str, float]:
        if len(set(verdicts.values())) < 2:
            must, do = "hold at least two different values", "add the word for another verdict"
            raise ValueError(sentence("verdicts", must, dict(verdicts), where="annotate", do=do))
        return verdicts

    async def __call__(self, group: Group, context: AnnotateContext) -> Group:
        places: dict[tuple[str, int], tuple[Trajectory, int | None]] = {}
        for episode in group.valid:
            if self.level == "episode":
                places[episode.tree.id, episode.leaf] = (episode, None)
            else:
                for turn in episode.turns:
                    places.setdefault((episode.tree.id, turn.nodes[-1]), (episode, turn.index + 1))
        annotations = await asyncio.gather(*[self._annotation(context, place, *of) for place, of in places.items()])
        return annotate_trees(
            group,
            {
                tree.id: [item for (of, _), item in zip(places, annotations, strict=True) if of == tree.id]
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


def has_answer(task: Task, key: str) -> bool:
    """Return whether the payload of a task holds some answer under a key."""
    return str("" if (answer := task.payload.get(key)) is None else answer) != ""


def reference_answer(task: Task, key: str) -> str:
    """Return the hidden answer of a task. Raises: InvalidInput: it has none; its keys are listed."""
    check_known("payload key", key, list(task.payload), where=f"task {task.id}")
    InvalidInput.unless(
        has_answer(task, key),
        "reference answer",
        "be some text",
        "nothing",
        where=f"task {task.id}",
        do="name another key",
    )
    return str(task.payload[key])


def reference_need(key: str, *, do: str = "set the annotator's reference to one of these keys") -> TaskNeed:
    """Return that every task must have a reference answer under a key of its payload."""
    return TaskNeed(key=key, holder="payload", every=True, read=lambda task: has_answer(task, key), do=do)
