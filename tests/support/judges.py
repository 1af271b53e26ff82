"""Doubles of named models, and groups as their annotators get them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.core.messages import Message
from envgym.core.tasks import Task
from envgym.errors import PartyFailure
from envgym.trainer.methods.annotators.base import AnnotateContext, Model
from tests.support.example_trees import TASK
from tests.support.parrots import char_agent


class ScriptedJudge(Model):
    """Answers by a function of the prompt; an exception is raised."""

    def __init__(self, answer: Callable[[str], str | Exception]) -> None:
        """Take the script."""
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
