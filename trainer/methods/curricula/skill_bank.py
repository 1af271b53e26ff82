"""Skills for a teacher: each group's tasks are rendered once more with a skill, which the policy is not given."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from envgym.config.settings import Settings
from envgym.core.trajectory import Group
from envgym.errors import sentence
from envgym.runs.files import write_json
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, StepOutcome, TaskRequest

_FILE = "skills.json"


class Skill(Settings):
    """Some advice on tasks, in words."""

    name: str
    """Names the skill in metrics."""
    text: str
    """The advice itself."""
    envs: tuple[str, ...] = ()
    """Names of the envs in the mixture that it is for; () = all."""
    task: int | None = None
    """Index of the one task of its env that it is for; null: all."""

    def is_for(self, env: str, task: int | None = None) -> bool:
        """Return whether it is for an env's tasks, or for one of them."""
        return (not self.envs or env in self.envs) and self.task in (None, task)


class Tally(NamedTuple):
    """Rewards that were counted."""

    num: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        """Their mean; None: there are none."""
        return self.total / self.num if self.num else None

    def plus(self, rewards: Sequence[float]) -> "Tally":
        return Tally(self.num + len(rewards), self.total + sum(rewards))


class SkillBank(GroupSource):
    """Draw tasks as `uniform` does, with a skill for the teacher: the greatest mean r + c sqrt(ln N / n) for the env.

    n counts the episodes of groups that had the skill, mean r their rewards, N all episodes of the env's skills; a
    skill without any comes first. Within a step a drawn skill counts as if its episodes had got the mean so far. The
    context with the skill is kept as `Tree.prompts["skill"]`, for `self_distillation`; the policy never sees it.

    Beside the given skills are those that an annotator such as `skill_writer` writes from the episodes of a step: each
    is for the task, or the env, that it was written from. Of those for one task the newest `capacity` are kept.

    Source: 2604.10674 (Skill-SD). The exploration constant and the capacity are ours, as no numbers are known.
    """

    skills: tuple[Skill, ...] = ()
    """Those that are given."""
    annotation: str | None = None
    """Name of the annotations whose words are skills, such as `skill`; null: none are written."""
    scope: Literal["task", "env"] = "task"
    """What a written skill is for: the task that it was written from, or all tasks of its env."""
    capacity: int = Field(default=8, ge=1)
    """Most written skills of one scope; the oldest leave."""
    exploration: float = Field(default=1.0, ge=0)
    """c: how much a seldom used skill is preferred."""
    prompt: str = "skill"
    """Name of the rendering in `Tree.prompts`."""
    _tallies: dict[str, Tally] = PrivateAttr(default_factory=dict)
    _written: list[Skill] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _check_sources(self) -> "SkillBank":
        if not self.skills and self.annotation is None:
            where, do = "curriculum skill_bank", "give some, or set annotation=skill beside annotate: [skill_writer]"
            raise ValueError(sentence("skills", "be given or written", "none", where=where, do=do))
        return self

    @property
    def tree_prompts(self) -> tuple[str, ...]:
        """The rendering with the skill."""
        return (self.prompt,)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        uniform_requests = Uniform().choose(context)
        tallies, requests = dict(self._tallies), list[TaskRequest]()
        for request in uniform_requests:
            skill = self._best(request, tallies)
            if skill is not None:
                tally = tallies.get(skill.name, Tally())
                tallies[skill.name] = tally.plus([tally.mean or 0.0] * context.group_size)
                prompts, metadata = {self.prompt: skill.text}, {"skill": skill.name}
                request = replace(request, prompts=prompts, metadata=metadata)
            requests.append(request)
        return requests

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Count the rewards of each skill's groups, and take up what was written; return the mean of each given one."""
        for request, group in outcome.pairs:
            if name := str(request.metadata.get("skill", "")):
                self._tallies[name] = self._tallies.get(name, Tally()).plus(episode_rewards(group))
            self._take_up(request, group, outcome.step)
        means = {skill.name: self._tallies.get(skill.name, Tally()).mean for skill in self.skills}
        written = {} if self.annotation is None else {"skills_written": float(len(self._written))}
        return {f"skill_{name}": mean for name, mean in means.items() if mean is not None} | written

    def _take_up(self, request: TaskRequest, group: Group, step: int) -> None:
        """Keep the skills that were written from a group, and drop the oldest of its scope beyond the capacity."""
        task = request.index if self.scope == "task" else None
        skills = [
            Skill(name=f"{tree.id}/{item.node} of step {step}", text=item.verdict, envs=(request.env,), task=task)
            for tree in group.trees
            for item in tree.annotations
            if item.name == self.annotation and item.level == "episode" and item.error is None
        ]
        if skills:
            of_scope = [skill for skill in self._written if skill.envs == (request.env,) and skill.task == task]
            dropped = [*of_scope, *skills][: -self.capacity]
            self._written = [skill for skill in [*self._written, *skills] if skill not in dropped]
            for skill in dropped:
                self._tallies.pop(skill.name, None)

    def _best(self, request: TaskRequest, tallies: Mapping[str, Tally]) -> Skill | None:
        """Return the skill of the greatest bound, the first of equals; None: there is none for the task."""
        skills = [skill for skill in (*self.skills, *self._written) if skill.is_for(request.env, request.index)]
        total = sum(tallies.get(skill.name, Tally()).num for skill in skills)

        def bound(skill: Skill) -> float:
            tally = tallies.get(skill.name, Tally())
            if tally.mean is None:
                return math.inf
            return tally.mean + self.exploration * math.sqrt(math.log(total) / tally.num)

        return max(skills, key=bound, default=None)

    def save(self, folder: Path) -> None:
        """Write the tallies, and the skills that were written."""
        written = [skill.model_dump(mode="json") for skill in self._written]
        write_json(folder / _FILE, {"tallies": self._tallies, "written": written})

    def load(self, folder: Path) -> None:
        data = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        self._tallies = {name: Tally(*tally) for name, tally in data["tallies"].items()}
        self._written = [Skill.model_validate(skill) for skill in data["written"]]
