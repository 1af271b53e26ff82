"""Wrappers that change by chance how an episode begins: hints and other words. What happened stands in `info`.

A draw depends on the seed of the reset and on the task alone, so a group, whose episodes share both, begins alike. A
reset without a seed takes one that follows from the last.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from envgym.config.settings import Settings
from envgym.core.messages import TASK, Message, Observation, reworded, with_hint
from envgym.core.task_needs import TaskNeed, metadata_text
from envgym.core.tasks import Split
from envgym.env import AsyncCalls, Env
from envgym.errors import InvalidInput
from envgym.records import ResetRecord, ResetResult
from envgym.seeds import derive_seed, generator
from envgym.wrappers.base import AnyEnv, Wrapper, reset_record_of

HINT = "{hint}"
"""Stands for the hint in its text."""
SKILLS = "Skills that may help:"
SYSTEM_PROMPT = "{system_prompt}"
"""Stands for the env's standing instructions in a text that takes their place."""


class OpeningWrapper(Wrapper):
    """What wrappers share that draw something at the reset; `key` is theirs in `info`."""

    key: str

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._seed = int(np.random.default_rng().integers(2**63))

    def draws(self, record: ResetRecord) -> np.random.Generator:
        """Return the generator of an episode."""
        self._seed = derive_seed(self._seed, "next") if record.seed is None else record.seed
        return generator(self.key, self._seed, record.task.key)

    def began(self, result: ResetResult, record: ResetRecord, choice: object) -> ResetResult:
        """Return the beginning with the record of what was drawn."""
        return ResetResult(record.observation, {**result.info, self.key: choice, "envgym": record})


class AddedText(OpeningWrapper, ABC):
    """Adds a text to the first observation of a share of the episodes; `ResetRecord.plain` keeps it without the text.

    The agent loop marks the tokens of the text as `INJECTED` and keeps the context without it as prompt `plain`, so
    that training tells such episodes apart. Test tasks get no text unless `on_test`. In `info` is the text, or None.
    """

    def __init__(self, env: AnyEnv, *, probability: float, on_test: bool) -> None:
        """Wrap `env`. Raises: InvalidInput: `probability` is outside [0, 1]."""
        super().__init__(env)
        where, do = type(self).__name__, "pass e.g. 0.5"
        InvalidInput.unless(0.0 <= probability <= 1.0, "probability", "lie in [0, 1]", probability, where=where, do=do)
        self.probability, self.on_test = probability, on_test

    def on_reset(self, result: ResetResult) -> ResetResult:
        record = reset_record_of(result)
        is_drawn = bool(self.draws(record).random() < self.probability)
        text = self.text_for(record) if is_drawn and (self.on_test or record.task.split is not Split.TEST) else None
        if text is None:
            return self.began(result, record, None)
        plain = record.observation if record.plain is None else record.plain
        observation = Observation.of(self.placed(record.observation.messages, text))
        return self.began(result, replace(record, observation=observation, plain=plain), text)

    @abstractmethod
    def text_for(self, record: ResetRecord) -> str | None:
        """Return the text for an episode; None: there is none for its task."""

    def placed(self, messages: Sequence[Message], text: str) -> tuple[Message, ...]:
        """Return the messages of the first observation with the text."""
        return with_hint(messages, text)


class GivenHint(AddedText):
    """Adds a hint to the first observation with a probability: the oracle's next action, or a text of the task's own.

    Tasks whose metadata hold no text under `metadata_key` are asked as they are.
    """

    key = "hint"

    def __init__(
        self,
        env: AnyEnv,
        probability: float = 0.5,
        *,
        metadata_key: str | None = None,
        text: str = f"Hint: {HINT}",
        on_test: bool = False,
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env; one with an oracle where `metadata_key` is None.
            probability: Share of the episodes with a hint.
            metadata_key: Key of the hint in a task's metadata; None: the hint is the oracle's next action.
            text: What is shown, around `{hint}`.
            on_test: Give hints to test tasks, too.

        Raises: InvalidInput: `probability` is outside [0, 1], `text` has no `{hint}`, or the env has no oracle.
        """
        super().__init__(env, probability=probability, on_test=on_test)
        do = "say where the hint stands"
        InvalidInput.unless(HINT in text, "text", f"hold {HINT}", text, where="GivenHint", do=do)
        has_source = metadata_key is not None or type(self.unwrapped).oracle is not Env.oracle
        do = "set metadata_key, or define oracle()"
        InvalidInput.unless(has_source, "env", "have an oracle", self.name, where="GivenHint", do=do)
        self.metadata_key, self.text = metadata_key, text

    def async_calls(self) -> AsyncCalls | None:
        """Return the coroutines of the env; None if the oracle gives the hints, since `oracle()` may wait."""
        return None if self.metadata_key is None else super().async_calls()

    def text_for(self, record: ResetRecord) -> str | None:
        """Return the hint. Raises: NoOracle: the env has none. InvalidInput: the task's own is no text."""
        hint = self.env.oracle() if self.metadata_key is None else metadata_text(record.task, self.metadata_key)
        return None if hint is None else self.text.replace(HINT, hint)

    def task_needs(self) -> Sequence[TaskNeed]:
        """Return the hint of the task's own, unless the oracle gives hints."""
        if self.metadata_key is None:
            return []
        do = "set metadata_key to a key that holds a hint, or add hints to the tasks"
        return [TaskNeed(key=self.metadata_key, read=partial(metadata_text, key=self.metadata_key), do=do)]


class SkillContext(AddedText):
    """Puts skills before the task in a share of the episodes, so that the policy comes to act without them.

    The share is constant: one that falls while a run goes on is the curriculum `withdrawn_skills`, or the setting of a
    later phase.

    Source: 2604.02268 (SKILL0); there a budget of skills shrinks, here all are shown or none is.
    """

    key = "skill_context"

    def __init__(
        self,
        env: AnyEnv,
        skills: Sequence[str],
        probability: float = 0.5,
        *,
        title: str = SKILLS,
        on_test: bool = False,
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env whose first observation is a text of the user's.
            skills: Texts, shown in this order, one a paragraph.
            probability: Share of the episodes with skills.
            title: What stands before them.
            on_test: Show them for test tasks, too.

        Raises: InvalidInput: `probability` is outside [0, 1], there is no skill, or one is empty or holds `{task}`.
        """
        super().__init__(env, probability=probability, on_test=on_test)
        texts = [skills] if isinstance(skills, str) else list(skills)
        must, where = "hold texts that are not empty", "SkillContext"
        InvalidInput.unless(texts and all(texts), "skills", must, repr(texts), where=where, do="write one")
        self.text = "\n\n".join([*([title] if title else []), *texts])
        InvalidInput.unless(TASK not in self.text, "skills", f"hold no {TASK}", self.text, where=where, do="reword it")

    def text_for(self, record: ResetRecord) -> str:
        del record
        return self.text

    def placed(self, messages: Sequence[Message], text: str) -> tuple[Message, ...]:
        """Return the messages with the skills before the user's last one."""
        return reworded(messages, f"{text}\n\n{TASK}")


class PromptVariant(Settings):
    """Other words for how an episode begins."""

    system_prompt: str = SYSTEM_PROMPT
    """The standing instructions; `{system_prompt}` stands for the env's."""
    observation: str = TASK
    """The user's last message of the first observation; `{task}`, which it must hold, stands for the env's words."""


class PromptVariants(OpeningWrapper):
    """Begins each episode in the words of one of several variants, drawn with equal probabilities.

    Tasks of the test split are asked in the words of `held_out`, where there are any, and no others are: so a test
    measures what does not depend on the words of training. `info` holds the name: `0`, or `held_out 0`, and so on.
    """

    key = "prompt_variants"

    def __init__(
        self, env: AnyEnv, variants: Sequence[Mapping[str, str]], *, held_out: Sequence[Mapping[str, str]] = ()
    ) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            variants: `PromptVariant` each; an empty one leaves the env's own words.
            held_out: Further ones, for tasks of the test split alone.

        Raises: InvalidInput: there is no variant, one stands in both lists, or one does not hold `{task}`.
        """
        super().__init__(env)
        self.variants, self.held_out = (
            tuple(PromptVariant.model_validate(variant) for variant in group) for group in (variants, held_out)
        )
        where = "PromptVariants"
        InvalidInput.unless(self.variants, "variants", "hold one", "none", where=where, do="add one, which may be {}")
        for variant in (*self.variants, *self.held_out):
            words, do = variant.observation, "say where the env's words stand"
            InvalidInput.unless(TASK in words, "observation", f"hold {TASK}", words, where=where, do=do)
        for variant in self.held_out:
            must, do = "be unlike all variants of training", "remove it from one of the lists"
            InvalidInput.unless(variant not in self.variants, "held_out", must, variant, where=where, do=do)

    def on_reset(self, result: ResetResult) -> ResetResult:
        """Begin in the words that are drawn. Raises: InvalidInput: the first observation is no text of the user's."""
        record = reset_record_of(result)
        is_held_out = bool(self.held_out) and record.task.split is Split.TEST
        variants = self.held_out if is_held_out else self.variants
        number = int(self.draws(record).integers(len(variants)))
        system_prompt = variants[number].system_prompt.replace(SYSTEM_PROMPT, record.system_prompt)
        observation, plain = record.observation, record.plain
        if variants[number].observation != TASK:
            observation = _in_other_words(observation, variants[number].observation)
            plain = None if plain is None else _in_other_words(plain, variants[number].observation)
        record = replace(record, system_prompt=system_prompt, observation=observation, plain=plain)
        return self.began(result, record, f"held_out {number}" if is_held_out else str(number))


def _in_other_words(observation: Observation, words: str) -> Observation:
    return Observation.of(reworded(observation.messages, words))
