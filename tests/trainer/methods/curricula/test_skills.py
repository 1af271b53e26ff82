"""Skills: which one a teacher gets, and which ones a context keeps."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.trainer.methods.curricula.skill_bank import Skill, SkillBank
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.curricula.withdrawn_skills import WithdrawnSkills
from envgym.trainer.methods.protocols import Checkpointed, EnvSupply, ObservingCurriculum, TaskRequest
from tests.support.graded import choose, observe

SUPPLIES = [EnvSupply("maze", 1.0, 50), EnvSupply("shop", 1.0, 50)]
SKILLS = (
    Skill(name="general", text="Think."),
    Skill(name="walls", text="Follow walls.", envs=("maze",)),
    Skill(name="prices", text="Compare prices.", envs=("shop",)),
)


def chosen(curriculum: Any, step: int, num_groups: int = 4) -> list[TaskRequest]:
    return choose(curriculum, step, groups=num_groups, size=2, supplies=SUPPLIES, seed=1)


def observed(curriculum: Any, requests: Sequence[TaskRequest], rewards: Sequence[float], step: int = 1) -> Any:
    return observe(curriculum, requests, *([reward, reward, None] for reward in rewards), step=step)


def test_both_observe_and_are_checkpointed_and_draw_the_tasks_of_uniform() -> None:
    for curriculum in (SkillBank(skills=SKILLS), WithdrawnSkills(skills=SKILLS)):
        assert isinstance(curriculum, ObservingCurriculum)
        assert isinstance(curriculum, Checkpointed)
        tasks = [(request.env, request.index) for request in chosen(curriculum, 3)]
        assert tasks == [(request.env, request.index) for request in chosen(Uniform(), 3)]


def test_teacher_gets_each_skill_once_and_then_the_one_of_the_greatest_bound() -> None:
    bank = SkillBank(skills=SKILLS[:2])
    requests = chosen(bank, 0)
    assert [(request.env, request.metadata.get("skill")) for request in requests] == [
        ("maze", "general"), ("shop", "general"), ("maze", "walls"), ("shop", "general"),
    ]  # fmt: skip
    assert [request.prompts["skill"] for request in requests[:3]] == ["Think.", "Think.", "Follow walls."]
    assert all(request.hint is None for request in requests)
    found = observed(bank, requests, [1.0, 0.0, 0.5, 0.5])
    assert found == {"skill_general": pytest.approx(0.5), "skill_walls": pytest.approx(0.5)}
    # of 8 episodes the general skill has 6, the other 2: .5 + sqrt(ln 8 / 6) = 1.089 against .5 + sqrt(ln 8 / 2) = 1.52
    assert 0.5 + math.sqrt(math.log(8) / 6) < 0.5 + math.sqrt(math.log(8) / 2)
    assert [request.metadata["skill"] for request in chosen(bank, 0, 2)] == ["walls", "general"]
    assert chosen(SkillBank(skills=SKILLS[1:2]), 0, 2)[1].prompts == {}, "no skill is for the shop"


def test_skills_are_withdrawn_by_phase() -> None:
    curriculum = WithdrawnSkills(skills=SKILLS, budgets=(3, 1, 0), phase_steps=2, share_without=0)
    names = [[skill.name for skill in curriculum.kept(step)] for step in range(6)]
    assert names == [["general", "walls", "prices"]] * 2 + [["general"]] * 2 + [[]] * 2
    assert [request.hint for request in chosen(curriculum, 0, 2)] == [
        "Think.\n\nFollow walls.", "Think.\n\nCompare prices.",
    ]  # fmt: skip
    assert [request.hint for request in chosen(curriculum, 2, 2)] == ["Think.", "Think."]
    assert all(request.hint is None for request in chosen(curriculum, 40))


def test_skills_that_do_not_help_are_withdrawn_at_a_review() -> None:
    curriculum = WithdrawnSkills(skills=SKILLS, review_every=2, share_without=0.5)
    requests = chosen(curriculum, 0, 8)
    assert [request.hint is None for request in requests] == [False, True] * 4
    # maze has its skill in groups 0, 2 ..., of uniform's turns maze, shop, maze, ...; so shop never has one here
    assert {request.env for request in requests if request.hint is None} == {"shop"}
    requests = [*requests, *(request for request in chosen(WithdrawnSkills(skills=SKILLS, share_without=0), 0, 8))]
    maze_without = [TaskRequest("maze", 0, 2)]
    found = observed(curriculum, [*requests, *maze_without], [0.5] * 16 + [0.75], step=1)
    assert found == {"skills": 3.0}, "no review is due"
    found = observed(curriculum, [], [], step=2)
    # walls: .5 with, .75 without: withdrawn; prices: .5 with and without: kept
    assert found == {"skills": 2.0, "helpfulness_walls": -0.25, "helpfulness_prices": 0.0}
    assert [skill.name for skill in curriculum.kept(2)] == ["general", "prices"]


@pytest.mark.parametrize("kind", [SkillBank, WithdrawnSkills])
def test_resumed_curriculum_chooses_as_the_one_before(kind: Any, tmp_path: Path) -> None:
    before, after = kind(skills=SKILLS), kind(skills=SKILLS)
    observed(before, chosen(before, 0, 6), [1.0, 0.0, 0.5, 0.25, 0.0, 1.0], step=10)
    before.save(tmp_path)
    after.load(tmp_path)
    assert chosen(after, 1, 6) == chosen(before, 1, 6)
    assert observed(after, [], [], step=20) == observed(before, [], [], step=20)
