"""SKILL0: skills stand in the context at first, and are withdrawn by step and by how little they help."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field, PrivateAttr

from envgym.agents.loop.hints import PLAIN
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.methods.curricula.skill_bank import Skill, Tally
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import CurriculumContext, GroupSource, StepOutcome, TaskRequest

_FILE = "skills.json"
_WITHOUT = "without skills, "


class WithdrawnSkills(GroupSource):
    """Draw tasks as `uniform` does, with the kept skills as a hint (`INJECTED`) in all groups but a share of them.

    In phase k, of `phase_steps` steps each, at most `budgets[k]` skills are kept, none where that is 0; the last
    budget stays. Skills without `envs` are general: they are kept first, and take places of the budget. The others are
    kept by helpfulness, the difference of the mean rewards of their envs' groups with them and without any skill since
    the last review: those of at least 0, the most helpful first. A review comes every `review_every` steps; until the
    first, and for what was not measured, helpfulness counts as 0.

    Source: 2604.02268 and its code. Deviations: helpfulness is measured on groups of the training, of which a share has
    no skills, instead of two validations; no reward for short contexts, and skills are words, not an image.
    """

    fixed_prompts: ClassVar[tuple[str, ...]] = (PLAIN,)
    skills: tuple[Skill, ...] = Field(min_length=1)
    """The skills to begin with."""
    budgets: tuple[int, ...] = Field(default=(6, 3, 0), min_length=1)
    """Most skills in the context, phase by phase."""
    phase_steps: int = Field(default=60, ge=1)
    """Train steps of each phase."""
    review_every: int = Field(default=10, ge=1)
    """Steps between reviews of what helps."""
    share_without: float = Field(default=0.25, ge=0, lt=1)
    """Of the groups that have no skills, so that helpfulness can be measured."""
    _tallies: dict[str, Tally] = PrivateAttr(default_factory=dict)
    """Rewards since the last review, by skill, and of each env's groups without skills."""
    _helpfulness: dict[str, float] = PrivateAttr(default_factory=dict)
    """As of the last review; absent: not measured."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        requests = Uniform().choose(context)
        skills, first = self.kept(context.step), context.first
        return [
            request if self._has_none(first + number) else self._with_skills(request, skills)
            for number, request in enumerate(requests)
        ]

    def kept(self, step: int) -> list[Skill]:
        """Return the skills that the context holds in train step `step` (from 0), general ones first."""
        budget = self.budgets[min(step // self.phase_steps, len(self.budgets) - 1)]
        general = [skill for skill in self.skills if not skill.envs]
        special = [skill for skill in self.skills if skill.envs and self._helpfulness.get(skill.name, 0.0) >= 0]
        special.sort(key=lambda skill: -self._helpfulness.get(skill.name, 0.0))
        return [*general, *special][:budget]

    def _has_none(self, number: int) -> bool:
        """Return whether the group of this number, counted over the run, has no skills; evenly spread."""
        share = self.share_without
        return math.floor((number + 1) * share) > math.floor(number * share)

    @staticmethod
    def _with_skills(request: TaskRequest, candidates: Sequence[Skill]) -> TaskRequest:
        skills = [skill for skill in candidates if skill.is_for(request.env)]
        if not skills:
            return request
        hint = "\n\n".join(skill.text for skill in skills)
        return replace(request, hint=hint, metadata={"skills": [skill.name for skill in skills]})

    def observe(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Count rewards, and review the skills where that is due; return how many are kept and how each helps."""
        for request, group in outcome.pairs:
            names = request.metadata.get("skills")
            for name in map(str, names) if isinstance(names, list) else [_WITHOUT + request.env]:
                self._tallies[name] = self._tallies.get(name, Tally()).plus(episode_rewards(group))
        if outcome.step % self.review_every == 0:
            self._review()
        helpfulness = {f"helpfulness_{name}": value for name, value in self._helpfulness.items()}
        return {"skills": float(len(self.kept(outcome.step))), **helpfulness}

    def _review(self) -> None:
        """Measure the skills that had groups with them and groups without any; forget what was counted."""
        for skill in self.skills:
            without = Tally()
            for env in skill.envs:
                tally = self._tallies.get(_WITHOUT + env, Tally())
                without = Tally(without.num + tally.num, without.total + tally.total)
            mine = self._tallies.get(skill.name, Tally()).mean
            if mine is not None and without.mean is not None:
                self._helpfulness[skill.name] = mine - without.mean
        self._tallies = {}

    def save(self, folder: Path) -> None:
        state = {"tallies": self._tallies, "helpfulness": self._helpfulness}
        (folder / _FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        state = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        self._tallies = {name: Tally(*tally) for name, tally in state["tallies"].items()}
        self._helpfulness = state["helpfulness"]
