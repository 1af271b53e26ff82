"""Methods that read hints and steps of tasks change the episodes of shipped environments."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.agents.loop.hints import PLAIN
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.messages import Action, text_of
from envgym.core.segments import Origin
from envgym.core.tasks import Split, Task
from envgym.core.tree import Source, Tree
from envgym.envs.math.arithmetic import Arithmetic
from envgym.errors import SettingsError
from envgym.records import Reply
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.checks.environments import check_task_inputs
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train
from envgym.wrappers.prompts import GivenHint
from tests.envs.requirements import require_packages
from tests.support.tiny_runs import tiny_settings

METHODS: dict[str, dict[str, Any]] = {
    "hinted": {"curriculum": {"name": "hinted"}},
    "guide": {"allocator": {"name": "guide"}, "loss": {"name": "guide"}},
    "scaf_grpo": {"allocator": {"name": "scaf_grpo", "warmup_steps": 0}},
    "sub_goals": {"curriculum": {"name": "sub_goals"}},
}


class LuckyArithmetic(Arithmetic):
    """The shipped tasks; pays for one answer of four, so that an untrained model succeeds at times."""

    def respond(self, action: Action) -> Reply:
        """Score the answer by a checksum of its text."""
        return Reply(reward=float(zlib.crc32(str(action).encode()) % 4 == 0), terminated=True)


def trained_trees(name: str, folder: Path) -> list[Tree]:
    """Train a step with a method on arithmetic, and return the trees of the step."""
    env = {"id": f"{LuckyArithmetic.__module__}:LuckyArithmetic", "settings": {"calculator": False}}
    rollout = {"groups": 8, "group_size": 2}
    sections = {"envs": [env], "rollout": rollout, **METHODS[name]}
    train(tiny_settings(folder, run={"directory": str(folder), "steps": 1}, **sections))
    return [tree for tree in trees_of(RunDirectory.open(folder).episodes()) if tree.id.startswith("step-")]


def task_of(tree: Tree) -> Task:
    """Return the shipped task of a tree."""
    tasks = envgym.make("math/arithmetic-v0").unwrapped.tasks
    return tasks.task(Split.TRAIN, int(tree.task_id.removeprefix("train/")))


def injected(tree: Tree) -> str:
    """Return the text of the injected tokens of the first context."""
    parts = [part for part in tree.nodes[0].edge.segments if part.origin is Origin.INJECTED]
    return str(tiny_tokenizer().decode([token for part in parts for token in part.token_ids]))


def test_hinted_shows_the_first_step_of_arithmetic(tmp_path: Path) -> None:
    trees = trained_trees("hinted", tmp_path)
    assert len(trees) == 16
    for tree in trees:
        assert str(task_of(tree).metadata["hint"]) in injected(tree)
        assert PLAIN in tree.prompts


def test_sub_goals_tells_one_of_two_steps_of_arithmetic(tmp_path: Path) -> None:
    trees = trained_trees("sub_goals", tmp_path)
    assert len(trees) == 16
    for tree in trees:
        steps = task_of(tree).metadata["sub_goals"]
        assert isinstance(steps, list)
        assert [str(step) in injected(tree) for step in steps].count(True) == 1


def test_guide_trains_episodes_that_had_a_step_of_arithmetic(tmp_path: Path) -> None:
    hinted = [tree for tree in trained_trees("guide", tmp_path) if tree.source is Source.REPLAY]
    assert hinted
    for tree in hinted:
        shown = tiny_tokenizer().decode([*tree.prompts["hinted"]])
        assert str(task_of(tree).metadata["hint"]) in shown
        assert injected(tree) == "", "it trains behind the context without the hint"


def test_scaf_grpo_puts_a_hinted_success_into_failed_groups_of_arithmetic(tmp_path: Path) -> None:
    hinted = [tree for tree in trained_trees("scaf_grpo", tmp_path) if PLAIN in tree.prompts]
    assert hinted
    for tree in hinted:
        assert str(task_of(tree).metadata["hint"]) in injected(tree)


WITH_STEPS = ("math/arithmetic-v0", "math/proofs-v0", "math/metamath-v0", "math/z3-v0")
WITH_HINTS = (*WITH_STEPS, "code/repo-v0")


@pytest.mark.parametrize(
    "env_id, name",
    [(env_id, name) for name in METHODS for env_id in (WITH_STEPS if name == "sub_goals" else WITH_HINTS)],
)
def test_shipped_tasks_have_what_methods_read(env_id: str, name: str) -> None:
    require_packages(env_id)
    sources = build_env_sources([EnvSettings(id=env_id)], EvaluationSettings(tasks=1))
    method = build_method(train_settings({"envs": [{"id": env_id}], **METHODS[name]}))
    check_task_inputs(method.task_readers, sources)


@pytest.mark.parametrize("env_id", ["math/metamath-v0", "code/repo-v0"])
def test_wrapper_shows_the_hint_of_a_shipped_task(env_id: str) -> None:
    require_packages(env_id)
    env = GivenHint(envgym.make(env_id), 1.0, metadata_key="hint")
    task = env.unwrapped.tasks.task(Split.TRAIN, 0)
    record = env.reset(options={"task": task}).info["envgym"]
    assert f"Hint: {task.metadata['hint']}" in text_of(record.observation.messages[-1])
    assert record.plain is not None
    assert str(task.metadata["hint"]) not in text_of(record.plain.messages[-1])


COLUMNS: dict[str, dict[str, Any]] = {
    "hinted": {"hint": "Count."},
    "guide": {"hint": "Count."},
    "scaf_grpo": {"hints": {"plan": ["Count."]}},
    "sub_goals": {"sub_goals": ["one", "two"]},
    "ada_rft": {"difficulty": 3},
    "bots": {"weak": 0.1, "strong": 0.9},
}
"""Method -> the columns of a data set that it reads."""


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_a_problem_set_reach_the_method_that_reads_them(name: str, tmp_path: Path) -> None:
    def check(columns: dict[str, Any]) -> None:
        path = tmp_path / f"{len(columns)}.jsonl"
        rows = [{"question": f"{number} + 1?", "answer": str(number + 1), **columns} for number in range(20)]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        env = {"id": "math/problems-v0", "settings": {"data": str(path)}}
        sources = build_env_sources([EnvSettings.model_validate(env)], EvaluationSettings(tasks=1))
        sections = METHODS.get(name, {"curriculum": {"name": name}})
        check_task_inputs(build_method(train_settings({"envs": [env], **sections})).task_readers, sources)

    check(COLUMNS[name])
    with pytest.raises(SettingsError, match=f"{next(iter(COLUMNS[name]))} must be in the metadata of"):
        check({})
