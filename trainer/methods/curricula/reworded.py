"""Tasks in other words: each group keeps its first context in words that the policy is not given."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field, field_validator

from envgym.core.messages import TASK
from envgym.errors import sentence
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, TaskRequest


class Reworded(GroupSource):
    """Draw as `uniform` does, and keep each first context in other words as `Tree.prompts`: for `contrastive`."""

    prompts: Mapping[str, str] = Field(min_length=1)
    """Name -> other words for a task, with its own in place of `{task}`; what stands around it may be a format, an
    instruction, or the same said otherwise."""

    @field_validator("prompts")
    @classmethod
    def _check(cls, prompts: Mapping[str, str]) -> Mapping[str, str]:
        for name, words in prompts.items():
            if TASK not in words or words == TASK:
                must, do = f"hold {TASK}, and other words than it", f"write such as <task>{TASK}</task>"
                raise ValueError(sentence(f"prompt {name}", must, repr(words), where="curriculum reworded", do=do))
        return prompts

    @property
    def tree_prompts(self) -> tuple[str, ...]:
        return tuple(self.prompts)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        return [replace(request, prompts=self.prompts) for request in Uniform().choose(context)]
