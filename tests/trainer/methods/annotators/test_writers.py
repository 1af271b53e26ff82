"""Models that write: skills from episodes for a teacher, and what was looked up as text that the policy imitates."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Action, Message
from envgym.core.segments import Origin
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation, Source
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.trainer.methods.annotators.writers import Rewriter, SkillWriter, covers
from envgym.trainer.methods.curricula.skill_bank import Skill, SkillBank
from envgym.trainer.methods.protocols import EnvSupply, StepOutcome, TaskRequest
from envgym.trainer.workflows.demonstrations import RewrittenDemonstrations
from tests.support.example_trees import TASK, outcome_group
from tests.support.graded import LUCKY, choose, train_steps
from tests.support.judges import DEAD, FreeModel, judge_context
from tests.support.parrots import char_agent

HERE = f"{Path(__file__).resolve()}"
SUPPLIES = [EnvSupply("maze", 1.0, 1)]


class Scribe(FreeModel):
    """Writes the same of everything: all small numbers, so that every answer is among them."""

    async def reply(self, messages: Sequence[Message], *, seed: int, max_new_tokens: int) -> str:
        return "0 1 2 3 4"


def written(annotator: Any, group: Group, answer: Any, **payload: Any) -> list[Annotation]:
    task = replace(TASK, payload={"answer": "42", **payload})
    context = judge_context(answer, task=task)
    annotator = annotator.model_copy(update={"model": "judge"})
    return [item for tree in asyncio.run(annotator(group, context)).trees for item in tree.annotations]


def test_skill_is_written_from_every_valid_episode_with_what_it_earned() -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "  Look first. "

    found = written(SkillWriter(), outcome_group(1.0, None, 0.0), answer)
    assert [(item.name, item.level, item.value, item.verdict) for item in found] == [
        ("skill", "episode", 1.0, "Look first."),
        ("skill", "episode", 0.0, "Look first."),
    ]
    assert sorted(prompt.splitlines()[-1] for prompt in prompts) == ["0", "1"]
    assert "6 * 7?" in prompts[0]


@pytest.mark.parametrize("answer", ["", DEAD], ids=["nothing", "dead"])
def test_writer_that_fails_leaves_an_error_and_no_words(answer: Any) -> None:
    (item,) = written(SkillWriter(), outcome_group(1.0), lambda prompt: answer)
    assert item.value is None
    assert item.error is not None


def test_only_right_episodes_are_rewritten_and_the_answer_is_checked_again() -> None:
    assert [item.value for item in written(Rewriter(), outcome_group(1.0, 0.5), lambda prompt: "It is 42.")] == [1.0]
    assert [item.value for item in written(Rewriter(), outcome_group(1.0), lambda prompt: "It is 420.")] == [0.0]
    several = written(Rewriter(reference="answers"), outcome_group(1.0), lambda p: "The Hague", answers=["x", "Hague"])
    assert [item.value for item in several] == [1.0]
    with pytest.raises(InvalidInput, match="answers"):
        written(Rewriter(reference="answers"), outcome_group(1.0), lambda prompt: "42")


@given(st.lists(st.sampled_from(["red", "green", "blue"]), max_size=6), st.integers(0, 5), st.integers(1, 3))
def test_every_row_of_words_of_a_text_is_covered_and_no_part_of_a_word(said: list[str], first: int, num: int) -> None:
    part = " ".join(said[first : first + num])
    assert covers(" ".join(said).upper() + ".", part) == bool(part)
    assert not covers(" ".join(said), "gree")
    assert not covers(" ".join(said), "")


def step(bank: SkillBank, group: Group, number: int) -> list[TaskRequest]:
    """Let the bank draw for the one task, and see a group of it; return what it drew."""
    drawn = choose(bank, number - 1, groups=1, size=1, supplies=SUPPLIES)
    bank.observe(StepOutcome(step=number, requests=drawn, groups=[group]))
    return drawn


def with_skill(text: str) -> Group:
    (tree,) = outcome_group(1.0).trees
    item = Annotation(name="skill", level="episode", node=tree.leaves[0], value=1.0, verdict=text)
    return Group(key="group", trees=(replace(tree, annotations=(item,)),))


def test_written_skill_is_drawn_for_its_own_task_alone_and_the_oldest_leaves() -> None:
    bank = SkillBank(annotation="skill", capacity=2)
    assert step(bank, with_skill("one"), 1)[0].prompts == {}
    assert step(bank, with_skill("two"), 2)[0].prompts == {"skill": "one"}
    assert step(bank, with_skill("three"), 3)[0].prompts == {"skill": "two"}, "what was not tried yet comes first"
    assert step(bank, with_skill("four"), 4)[0].prompts == {"skill": "three"}
    others = [EnvSupply("shop", 1.0, 1)]
    (drawn,) = choose(bank, 4, groups=1, size=1, supplies=others)
    assert drawn.prompts == {}, "skills of another env"
    assert [skill.text for skill in bank._written] == ["three", "four"]


def test_given_and_written_skills_stand_beside_each_other_and_are_kept_by_a_checkpoint(tmp_path: Path) -> None:
    bank = SkillBank(skills=(Skill(name="general", text="Think."),), annotation="skill", scope="env")
    step(bank, with_skill("one"), 1)
    metrics = bank.observe(StepOutcome(step=2, requests=[], groups=[]))
    assert metrics == {"skill_general": 1.0, "skills_written": 1.0}
    bank.save(tmp_path)
    again = SkillBank(skills=(Skill(name="general", text="Think."),), annotation="skill", scope="env")
    again.load(tmp_path)
    assert step(again, outcome_group(1.0), 3) == step(bank, outcome_group(1.0), 3)
    assert step(again, outcome_group(1.0), 4) == step(bank, outcome_group(1.0), 4)


def test_bank_without_any_source_of_skills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="skills must be given or written, got none"):
        SkillBank()
    with pytest.raises(UnknownName, match="skill"):
        train_steps(tmp_path, curriculum={"name": "skill_bank", "annotation": "skill"})


def test_run_distils_from_skills_that_a_second_model_wrote(tmp_path: Path) -> None:
    first, second = train_steps(
        tmp_path,
        env=LUCKY,
        annotate=["skill_writer"],
        models={"writer": {"kind": {"name": f"{HERE}:Scribe"}}},
        curriculum={"name": "skill_bank", "annotation": "skill", "scope": "env"},
        filter={"name": "keep_all"},
        objective={"terms": [{"name": "distillation", "loss": {"name": "self_distillation"}, "coef": 0.001}]},
        optim={"lr": 0.001},
    )
    assert first["curriculum/skills_written"] > 0
    assert first["loss/distillation"] == pytest.approx(0.0, abs=1e-6), "no skill was there yet"
    assert second["loss/distillation"] > 1e-6


def test_rewritten_text_is_an_answer_to_the_first_context() -> None:
    source = RewrittenDemonstrations()
    source.check_agent(char_agent())
    (tree,) = outcome_group(1.0).trees
    kept, dropped = (
        Annotation(name="rewrite", level="episode", node=tree.leaves[0], value=value, verdict="It is 42.")
        for value in (1.0, 0.0)
    )
    group = Group(key="group", trees=(replace(tree, annotations=(kept,)), replace(tree, annotations=(dropped,))))
    (episode,) = source.of_step([group])
    assert episode.tree.source is Source.DEMONSTRATION
    (row,) = episode.rows
    assert row.segments[: len(tree.nodes[0].edge.segments)] == tree.nodes[0].edge.segments
    assert row.segments[-1].origin is Origin.POLICY
    assert row.segments[-1].token_ids == char_agent().renderer.encode_action(Action("It is 42."))


def test_run_memorises_what_was_rewritten(tmp_path: Path) -> None:
    rows = train_steps(
        tmp_path,
        env=LUCKY,
        annotate=[{"name": "rewriter", "min_reward": 0.0, "reference": "a"}],
        models={"writer": {"kind": {"name": f"{HERE}:Scribe"}}},
        demonstrations={"source": "rewritten", "per_step": 2},
        filter={"name": "keep_all"},
        objective={
            "terms": [{"name": "memory", "loss": "nll", "coef": 0.1, "sources": ["DEMONSTRATION"]}],
        },
        optim={"lr": 0.01},
    )
    assert rows[0]["loss/memory"] > rows[1]["loss/memory"] > 0
    memory = {"name": "memory", "loss": "nll", "sources": ["DEMONSTRATION"]}
    with pytest.raises(UnknownName, match="rewrite"):  # nothing writes them
        train_steps(tmp_path / "nobody", demonstrations={"source": "rewritten"}, objective={"terms": [memory]})
    assert not (tmp_path / "nobody").exists()
    with pytest.raises(SettingsError, match="demonstrations must be used with a term"):
        train_steps(tmp_path / "no_term", demonstrations={"source": "rewritten"})
