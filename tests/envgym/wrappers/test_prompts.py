"""Changed beginnings: what is shown, how often, to whom, and how training tells."""

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]  # SciPy has no stubs

from envgym import Env, Message, Observation, Role, Split, Task
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.config.plugins import Choice
from envgym.core.messages import GUIDE
from envgym.core.segments import Origin
from envgym.core.tree import Tree
from envgym.errors import InvalidInput, SettingsError
from envgym.records import ResetResult
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.train import train
from envgym.wrappers import AnyEnv, GivenHint, PromptVariants, SkillContext, Subproblems, TryAgain
from envgym.wrappers.base import WRAPPER, reset_record_of
from tests.support.parrots import ASSISTANT, END, USER, Parrot, char_agent, encode, parrot_job, run_episodes, said
from tests.support.tiny_runs import tiny_settings
from tests.support.toys import Sums

DRAWS = 2000


def begun(env: AnyEnv, seed: int | None = 1, *, split: str = "train", index: int = 3) -> ResetResult:
    return env.reset(seed=seed, options={"split": split, "index": index})


def task_with(**metadata: Any) -> Task:
    return replace(Sums().tasks.task(Split.TRAIN, 3), metadata=metadata)


def grown(make_env: Any) -> Tree:
    policy = ScriptedPolicy(lambda request: said("bye"))
    jobs = [parrot_job(make_env)]
    (tree,) = asyncio.run(run_episodes(jobs, char_agent(), policy, concurrency=1, clock=lambda: 0.0))
    return tree


def interval(share: float) -> tuple[float, float]:
    """Return the range in which a count of `DRAWS` draws lies in 999,999 of a million cases."""
    low, high = stats.binom.interval(1 - 1e-6, DRAWS, share)
    return float(low), float(high)


def test_hint_is_the_oracles_next_action() -> None:
    env, plain = GivenHint(Sums(), 1.0), Sums()
    result = begun(env)
    shown = begun(plain).observation
    assert result.observation == f"{shown}\n\nHint: {plain.oracle()}"
    assert result.info["hint"] == f"Hint: {plain.oracle()}"
    record = reset_record_of(result)
    assert (record.plain, record.observation) == (shown, result.observation)
    assert env.step(env.oracle())[1] == 1.0, "the episode is the env's"


def test_hint_can_be_a_text_of_the_task() -> None:
    env = GivenHint(Sums(), 1.0, metadata_key="how", text="Think: {hint}!")
    result = env.reset(seed=1, options={"task": task_with(how="carry the one")})
    assert str(result.observation).endswith("?\n\nThink: carry the one!")
    result = env.reset(seed=1, options={"task": task_with()})
    assert (result.info["hint"], reset_record_of(result).plain) == (None, None), "a task without one"
    with pytest.raises(InvalidInput, match=r"metadata how must be a text, got 3 \(task train/3\)"):
        env.reset(seed=1, options={"task": task_with(how=3)})


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_share_of_hinted_episodes_is_the_probability(probability: float) -> None:
    env = GivenHint(Sums(), probability)
    hinted = sum(begun(env, seed).info["hint"] is not None for seed in range(DRAWS))
    low, high = interval(probability)
    assert low <= hinted <= high


def test_draw_depends_on_seed_and_task_alone() -> None:
    first, second = GivenHint(Sums()), GivenHint(Sums(), text="Do {hint}")
    drawn = [begun(first, seed).info["hint"] is None for seed in range(40)]
    assert drawn == [begun(second, seed).info["hint"] is None for seed in reversed(range(40))][::-1]
    others = [begun(first, 1, index=index).info["hint"] is None for index in range(40)]
    assert len(set(drawn)) == len(set(others)) == 2
    begun(first, 5), begun(second, 5)
    follow = [[begun(env, None).info["hint"] is None for _ in range(20)] for env in (first, second)]
    assert follow[0] == follow[1], "resets without a seed follow from the last one"
    assert len(set(follow[0])) == 2


def test_test_tasks_get_no_hint_unless_asked_for() -> None:
    assert all(begun(GivenHint(Sums(), 1.0), seed, split="test").info["hint"] is None for seed in range(20))
    assert begun(GivenHint(Sums(), 1.0, on_test=True), split="test").info["hint"] is not None


def test_training_tells_hinted_episodes_apart() -> None:
    tree = grown(lambda: GivenHint(Parrot(), 1.0, metadata_key=None, text="H{hint}"))
    hint = encode(f"\n\nH{Parrot.oracle(begun_parrot())}")
    assert [(part.origin, part.token_ids) for part in tree.nodes[0].edge.segments] == [
        (Origin.PROMPT, (USER, *encode("Q"))),
        (Origin.INJECTED, hint),
        (Origin.PROMPT, (END,)),
        (Origin.TEMPLATE, (ASSISTANT,)),
    ]
    assert tree.prompts == {"plain": (USER, *encode("Q"), END, ASSISTANT)}
    plain = grown(lambda: GivenHint(Parrot(), 0.0))
    assert plain.nodes == grown(Parrot).nodes
    assert plain.prompts == {}


def begun_parrot() -> Parrot:
    env = Parrot()
    env.reset(seed=0)
    return env


def test_two_hints_leave_the_plain_observation_of_the_env() -> None:
    env = GivenHint(GivenHint(Sums(), 1.0, text="A{hint}"), 1.0, text="B{hint}")
    result = begun(env)
    assert reset_record_of(result).plain == begun(Sums()).observation
    assert str(result.observation).count(env.oracle()) >= 2


def test_hint_of_another_attempt_follows_from_the_seed() -> None:
    def shown() -> list[bool]:
        env = TryAgain(GivenHint(Sums()), 12)
        begun(env, 5)
        return ["Hint:" in str(env.step(f"no {number}").observation) for number in range(11)]

    assert shown() == shown()
    assert len(set(shown())) == 2


def test_observation_without_a_message_is_the_hint_alone() -> None:
    class Silent(Sums):
        def begin(self, task: Task) -> str:
            super().begin(task)
            return ""

    record = reset_record_of(begun(GivenHint(Silent(), 1.0, text="{hint}")))
    env = Sums()
    begun(env)
    assert record.observation.messages == (Message(role=Role.USER, content=env.oracle(), name=GUIDE),)
    assert record.plain == Observation("")


def test_what_cannot_give_hints_is_refused() -> None:
    class Blind(Sums):
        oracle = Env.oracle

    with pytest.raises(InvalidInput, match=r"env must have an oracle, got Blind \(GivenHint\); set metadata_key"):
        GivenHint(Blind())
    assert begun(GivenHint(Blind(), metadata_key="how")).info["hint"] is None
    with pytest.raises(InvalidInput, match=r"probability must lie in \[0, 1\], got 1.5 \(GivenHint\)"):
        GivenHint(Sums(), 1.5)
    with pytest.raises(InvalidInput, match=r"text must hold \{hint\}, got Hint!"):
        GivenHint(Sums(), text="Hint!")


WORDS = [{"observation": "{task}"}, {"observation": "Q: {task} A:", "system_prompt": "Be brief. {system_prompt}"}]
HELD_OUT = [{"observation": "Pray tell: {task}"}, {"observation": "{task} Go!"}]


class Instructed(Sums):
    system_prompt = "Add."


def test_variant_rewords_instructions_and_task() -> None:
    env = PromptVariants(Instructed(), WORDS[1:])
    record = reset_record_of(begun(env))
    assert record.observation == f"Q: {begun(Sums()).observation} A:"
    assert record.system_prompt == "Be brief. Add."
    assert env.step(env.oracle())[1] == 1.0
    plain = reset_record_of(begun(PromptVariants(Instructed(), [{}])))
    assert plain == reset_record_of(begun(Instructed())), "an empty variant changes nothing"


def test_variants_are_drawn_alike_and_by_seed() -> None:
    env = PromptVariants(Sums(), [{"observation": f"{{task}} {number}"} for number in range(4)])
    drawn = [begun(env, seed) for seed in range(DRAWS)]
    assert all(str(item.observation).endswith(item.info["prompt_variants"]) for item in drawn)
    low, high = interval(1 / 4)
    assert all(low <= sum(item.info["prompt_variants"] == str(k) for item in drawn) <= high for k in range(4))
    assert [begun(env, seed).observation for seed in range(20)] == [item.observation for item in drawn[:20]]


def test_held_out_variants_are_those_of_the_test_split_alone() -> None:
    env = PromptVariants(Sums(), WORDS, held_out=HELD_OUT)
    names = {
        split: {begun(env, seed, split=split).info["prompt_variants"] for seed in range(40)}
        for split in ("train", "test")
    }
    assert names == {"train": {"0", "1"}, "test": {"held_out 0", "held_out 1"}}
    without = PromptVariants(Sums(), WORDS)
    assert {begun(without, seed, split="test").info["prompt_variants"] for seed in range(40)} == {"0", "1"}


def test_hint_within_a_variant_stays_a_hint() -> None:
    record = reset_record_of(begun(PromptVariants(GivenHint(Sums(), 1.0), WORDS[1:])))
    shown = begun(Sums()).observation
    assert record.plain == f"Q: {shown} A:"
    assert str(record.observation).startswith(f"Q: {shown}\n\nHint: ")


def test_variants_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"variants must hold one, got none"):
        PromptVariants(Sums(), [])
    with pytest.raises(InvalidInput, match=r"observation must hold \{task\}, got Add! \(PromptVariants\)"):
        PromptVariants(Sums(), WORDS, held_out=[{"observation": "Add!"}])
    with pytest.raises(InvalidInput, match=r"held_out must be unlike all variants of training"):
        PromptVariants(Sums(), WORDS, held_out=[{}])
    choice = Choice.model_validate({"name": "prompt_variants", "variants": [{"observatoin": "{task}"}]})
    with pytest.raises(SettingsError, match="observatoin"):
        WRAPPER.build(choice, Sums())


def test_skills_stand_before_the_task() -> None:
    env = SkillContext(Sums(), ["Add the ones first.", "Carry."], 1.0)
    result = begun(env)
    shown = begun(Sums()).observation
    skills = "Skills that may help:\n\nAdd the ones first.\n\nCarry."
    assert result.observation == f"{skills}\n\n{shown}"
    assert (result.info["skill_context"], reset_record_of(result).plain) == (skills, shown)
    assert env.step(env.oracle())[1] == 1.0
    assert begun(SkillContext(Sums(), "Carry.", 1.0, title="")).observation == f"Carry.\n\n{shown}", "one as it is"


def test_share_of_episodes_with_skills_is_the_probability_and_0_in_tests() -> None:
    env = SkillContext(Sums(), ["Carry."], 0.8)
    low, high = interval(0.8)
    assert low <= sum(begun(env, seed).info["skill_context"] is not None for seed in range(DRAWS)) <= high
    assert all(begun(env, seed, split="test").observation.startswith("What is") for seed in range(20))
    env = SkillContext(Sums(), ["Carry."], 1.0, on_test=True)
    assert begun(env, split="test").observation.startswith("Skills that may help:")


def test_skills_are_injected_and_trees_keep_the_plain_context() -> None:
    tree = grown(lambda: SkillContext(Parrot(), "S", 1.0, title=""))
    assert [(part.origin, part.token_ids) for part in tree.nodes[0].edge.segments][:3] == [
        (Origin.PROMPT, (USER,)),
        (Origin.INJECTED, encode("S\n\n")),
        (Origin.PROMPT, (*encode("Q"), END)),
    ]
    assert tree.prompts == {"plain": (USER, *encode("Q"), END, ASSISTANT)}


def test_draws_of_wrappers_are_independent() -> None:
    env = SkillContext(GivenHint(Sums(), 0.5), ["Carry."], 0.5)
    drawn = [begun(env, seed).info for seed in range(DRAWS)]
    low, high = interval(1 / 4)
    both = sum(info["hint"] is not None and info["skill_context"] is not None for info in drawn)
    assert low <= both <= high


def test_skills_that_cannot_be_shown_are_refused() -> None:
    for skills in ([], [""], ""):
        with pytest.raises(InvalidInput, match=r"skills must hold texts that are not empty"):
            SkillContext(Sums(), skills)
    with pytest.raises(InvalidInput, match=r"skills must hold no \{task\}"):
        SkillContext(Sums(), "Read {task} twice.")


def test_subproblems_with_hints_keep_the_problems_without_them() -> None:
    plain = reset_record_of(begun(Subproblems(Sums(), 3)))
    hinted = reset_record_of(begun(Subproblems(GivenHint(Sums(), 1.0), 3)))
    assert (hinted.plain, plain.plain) == (plain.observation, None)
    assert str(hinted.observation).count("Hint: ") == 3


def test_groups_of_a_run_are_hinted_as_a_whole_and_its_evaluations_are_not(tmp_path: Path) -> None:
    env = {"id": "tests.support.tiny_runs:EvenWords", "wrappers": [{"name": "hint", "probability": 0.5}]}
    rollout = {"groups": 8, "group_size": 2}
    train(tiny_settings(tmp_path / "run", envs=[env], run={"steps": 1}, rollout=rollout, evaluation={"tasks": 4}))
    by_group: dict[tuple[Split, str], list[bool]] = defaultdict(list)
    for tree in trees_of(RunDirectory.open(tmp_path / "run").episodes()):
        is_marked = any(segment.origin is Origin.INJECTED for segment in tree.nodes[0].edge.segments)
        assert is_marked == ("plain" in tree.prompts)
        by_group[tree.split, tree.id.rpartition("/")[0]].append(is_marked)
    train_groups = [marks for (split, _), marks in by_group.items() if split is Split.TRAIN]
    assert sorted(map(sum, train_groups)) == [0] * 3 + [2] * 5, "eight groups of two, each of one kind"
    held_out = [mark for (split, _), marks in by_group.items() if split is Split.TEST for mark in marks]
    assert held_out == [False] * 4
