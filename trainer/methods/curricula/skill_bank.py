"""Skills for a teacher: each group's tasks are rendered once more with a skill, which the policy is not given."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, PrivateAttr

from envgym.settings import Settings
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, StepOutcome, TaskRequest

_FILE = "skills.json"


class Skill(Settings):
    """Some advice on tasks, in words."""

    name: str
    text: str
    envs: tuple[str, ...] = ()
    """Names of the envs in the mixture that it is for; () = all."""

    def is_for(self, env: str) -> bool:
        """Return whether it is for an env's tasks."""
        return not self.envs or env in self.envs


class Tally(NamedTuple):
    """Rewards that were counted."""

    num: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        """Their mean; None: there are none."""
        return self.total / self.num if self.num else None

    def plus(self, rewards: Sequence[float]) -> "Tally":
        """Return the tally with more rewards."""
        return Tally(self.num + len(rewards), self.total + sum(rewards))


class SkillBank(Settings):
    """Draw tasks as `uniform` does, with a skill for the teacher: the greatest mean r + c sqrt(ln N / n) for the env.

    n counts the episodes of groups that had the skill, mean r their rewards, N all episodes of the env's skills; a
    skill without any comes first. Within a step a drawn skill counts as if its episodes had got the mean so far. The
    context with the skill is kept as `Tree.prompts["skill"]`, for `self_distillation`; the policy never sees it.

    Source: 2604.10674 (Skill-SD). Deviations: skills are given; no second model writes them from episodes. The
    exploration constant is ours, as no number is known.
    """

    skills: tuple[Skill, ...] = Field(min_length=1)
    exploration: float = Field(default=1.0, ge=0)
    """c: how much a seldom used skill is preferred."""
    prompt: str = "skill"
    """Name of the rendering in `Tree.prompts`."""
    _tallies: dict[str, Tally] = PrivateAttr(default_factory=dict)

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        """Return the groups of a train step."""
        drawn = Uniform().choose(context)
        tallies, requests = dict(self._tallies), list[TaskRequest]()
        for request in drawn:
            skill = self._best(request.env, tallies)
            if skill is not None:
                tally = tallies.get(skill.name, Tally())
                tallies[skill.name] = tally.plus([tally.mean or 0.0] * context.group_size)
                prompts, metadata = {self.prompt: skill.text}, {"skill": skill.name}
                request = replace(request, prompts=prompts, metadata=metadata)
            requests.append(request)
        return requests

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Count the rewards of each skill's groups; return the mean of each."""
        for request, group in outcome.pairs:
            if name := str(request.metadata.get("skill", "")):
                self._tallies[name] = self._tallies.get(name, Tally()).plus(episode_rewards(group))
        return {f"skill_{name}": tally.mean for name, tally in self._tallies.items() if tally.mean is not None}

    def _best(self, env: str, tallies: Mapping[str, Tally]) -> Skill | None:
        """Return the skill of the greatest bound, the first of equals; None: there is none for the env."""
        skills = [skill for skill in self.skills if skill.is_for(env)]
        total = sum(tallies.get(skill.name, Tally()).num for skill in skills)

        def bound(skill: Skill) -> float:
            tally = tallies.get(skill.name, Tally())
            if tally.mean is None:
                return math.inf
            return tally.mean + self.exploration * math.sqrt(math.log(total) / tally.num)

        return max(skills, key=bound, default=None)

    def save(self, folder: Path) -> None:
        """Write the tallies."""
        (folder / _FILE).write_text(json.dumps(self._tallies), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote."""
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        self._tallies = {name: Tally(*tally) for name, tally in found.items()}
