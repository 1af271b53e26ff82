"""Doubles of named models, and groups as their annotators get them."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from envgym import Message, Task
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.errors import PartyFailure
from envgym.trainer.methods.annotators.base import AnnotateContext, Model
from tests.support.example_trees import TASK
from tests.support.parrots import char_agent, said, show


class FreeModel(Model):
    """A model that needs nothing of its run."""

    def __init__(self, context: object) -> None: ...


class ScriptedJudge(Model):
    """Answers by a function of the prompt; an exception is raised."""

    def __init__(self, answer: Callable[[str], str | Exception]) -> None:
        self._answer = answer
        self.prompts: list[str] = []
        self.seeds: list[int] = []

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        """Say what the script says. Raises: Exception: the script's."""
        del max_new_tokens
        await asyncio.sleep(0)
        self.prompts.append(messages[-1].content)
        self.seeds.append(seed)
        answer = self._answer(messages[-1].content)
        if isinstance(answer, Exception):
            raise answer
        return answer


DEAD = PartyFailure("no answer within 3 s")
"""What a judge that is not there raises."""


def judge_context(
    judge: Callable[[str], str | Exception] = lambda prompt: "YES", *, task: Task = TASK, **parts: Any
) -> AnnotateContext:
    """Return what an annotator is given, with a judge called `judge`; `parts` replace its fields."""
    models = {"judge": ScriptedJudge(judge), **parts.pop("models", {})}
    policy = parts.pop("policy", ScriptedPolicy(()))
    return AnnotateContext(
        step=0, task=task, models={**models, "policy": policy}, policy=policy, agent=parts.pop("agent", char_agent())
    )


class CharScorer(Model):
    """Says how probable every character is: of some its own probability, of all others the same."""

    def __init__(self, probability: float, **own: float) -> None:
        self.probability, self.own = probability, own
        self.asked: list[str] = []

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the log-probs, whatever stands before a character."""
        texts = [show(row) for row in token_ids]
        self.asked += ["".join(text) for text in texts]
        return [(0.0, *[math.log(self.own.get(char, self.probability)) for char in text[1:]]) for text in texts]


class ScoringPolicy(ScriptedPolicy):
    def __init__(self, words: str, scorer: CharScorer) -> None:
        super().__init__(lambda request: said(words))
        self.scorer = scorer

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """Return the scorer's."""
        return await self.scorer.compute_logprobs(token_ids)
