"""What methods read of tasks is looked for before a run starts; a missing input is refused in one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.trainer.checks.environments import (
    check_skills,
    check_task_inputs,
    check_wrapper_inputs,
    warn_of_idle_choices,
)
from envgym.trainer.env_source import EnvSource, build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.methods.curricula.dump import Dump
from envgym.trainer.methods.curricula.hard_prompts import HardPrompts
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.shaping.annotated import Annotated
from envgym.trainer.methods.shaping.none import NoShaping
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train
from tests.support.graded import GRADED
from tests.support.toys import Counter
from tests.support.unlabelled import HERE

ROOT = Path(__file__).resolve().parents[3]
ARITHMETIC = "math/arithmetic-v0"
PLAIN = "puzzles/guess_number-v0"
"""Its tasks have none of the keys that methods read."""


def wrapped(**wrapper: Any) -> dict[str, Any]:
    """Return the section of an env with a wrapper."""
    return {"envs": [{"id": PLAIN, "wrappers": [wrapper]}]}


MODELS = {"models": {"judge": {"kind": f"{HERE}:Reader"}, "writer": {"kind": f"{HERE}:Reader"}}}
NAMED = {"template": "{task} {reference} {answer}"}
MISSING: list[tuple[dict[str, Any], str]] = [
    ({"curriculum": "hinted"}, "hint must be in the metadata of some tasks, got none in 256 tasks of"),
    ({"curriculum": {"name": "hinted", "until": 0, "keep_as": "teacher"}}, "hint must be in the metadata of some"),
    ({"curriculum": "sub_goals"}, "sub_goals must be in the metadata of some tasks, got none in 256 tasks of"),
    ({"curriculum": "ada_rft"}, "difficulty must be in the metadata of every task, got a task of"),
    ({"curriculum": "bots"}, "weak must be in the metadata of every task, got a task of"),
    ({"curriculum": {"name": "bots", "weak": "size"}}, "strong must be in the metadata of every task, got a task of"),
    ({"allocator": "guide", "loss": "guide"}, "hint must be in the metadata of some tasks"),
    ({"allocator": {"name": "scaf_grpo", "warmup_steps": 0}}, "hints must be in the metadata of some tasks"),
    ({"annotate": [{"name": "judge", "reference": "anser"}]}, "anser must be in the payload of every task"),
    ({"annotate": [{"name": "rlpr", "reference": "anser"}]}, "anser must be in the payload of every task"),
    ({"annotate": [{"name": "verifree", "reference": "anser"}]}, "anser must be in the payload of every task"),
    ({"annotate": [{"name": "rewriter", "reference": "anser"}]}, "anser must be in the payload of every task"),
    (
        wrapped(name="hint", metadata_key="clue"),
        r"clue must be in the metadata of some .*\(envs, wrapper hint\)",
    ),
    (wrapped(name="subproblems", own=True), "subproblems must be in the payload of every task, got a task of"),
]
"""Sections -> the sentence about the tasks of `PLAIN`."""


class TwoTasks:
    """Two train tasks."""

    def __init__(self, *tasks: Task) -> None:
        """Take the tasks."""
        self._tasks = tasks

    def size(self, split: Split) -> int:
        """Return their number."""
        return len(self._tasks) if split is Split.TRAIN else 0

    def task(self, split: Split, index: int) -> Task:
        """Return a task."""
        assert split is Split.TRAIN
        return self._tasks[index]


def source_of(label: str, *entries: dict[str, Any]) -> EnvSource:
    """Return an env whose tasks have these metadata and payload."""
    tasks = [
        Task(id=f"{label}/{number}", prompt="?", split=Split.TRAIN, payload={"n": number}, **{"metadata": {}, **entry})
        if "payload" not in entry
        else Task(id=f"{label}/{number}", prompt="?", split=Split.TRAIN, **entry)
        for number, entry in enumerate(entries)
    ]
    return EnvSource(label=label, env_id=label, weight=1.0, make=Counter, tasks=TwoTasks(*tasks), held_out=())


def check(sections: dict[str, Any], *sources: EnvSource) -> None:
    method = build_method(train_settings({"envs": [{"id": ARITHMETIC}], **MODELS, **sections}))
    check_task_inputs(method.task_readers, {source.label: source for source in sources})


@pytest.mark.parametrize("sections, sentence", MISSING)
def test_a_run_whose_tasks_lack_an_input_does_not_start(
    sections: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    data = {
        "run": {"directory": str(tmp_path / "run"), "steps": 1, "trackers": []},
        "model": {"name": "tiny"},
        "envs": [{"id": PLAIN}],
        "models": {**MODELS["models"], "initial": {"kind": "snapshot"}},
    }
    with pytest.raises(SettingsError, match=sentence) as error:
        train(train_settings({**data, **sections}))
    assert PLAIN in str(error.value)
    names = re.findall(r"'(?:name|curriculum|allocator)': '(\w+)'", str(sections))
    assert names[0] in str(error.value).partition("(")[2], "the method is named"
    assert str(error.value).count("; ") == 1, "one remedy"
    assert not (tmp_path / "run").exists()


def test_one_task_of_one_env_with_a_hint_is_enough() -> None:
    without = source_of("a", {}, {})
    check({"curriculum": "hinted"}, without, source_of("b", {}, {"metadata": {"hint": "Count."}}))
    with pytest.raises(
        SettingsError, match="got none in 2 tasks of a with nothing and none in 1 tasks of b with level"
    ):
        check({"curriculum": "hinted"}, without, source_of("b", {"metadata": {"level": 1}}))


def test_every_task_of_every_env_needs_its_difficulty() -> None:
    rated = source_of("a", {"metadata": {"difficulty": 3}})
    check({"curriculum": "ada_rft"}, rated)
    for value in (None, "3", True):
        with pytest.raises(SettingsError, match=r"got a task of b with difficulty \(curriculum ada_rft, task b/0\)"):
            check({"curriculum": "ada_rft"}, rated, source_of("b", {"metadata": {"difficulty": value}}))


def test_sub_goals_that_are_all_left_to_be_solved_are_none() -> None:
    parts = source_of("a", {"metadata": {"sub_goals": ["one", "two"]}})
    check({"curriculum": "sub_goals"}, parts)
    with pytest.raises(SettingsError, match="sub_goals must be in the metadata of some tasks"):
        check({"curriculum": {"name": "sub_goals", "first": 2}}, parts)


@pytest.mark.parametrize("tiers", [{}, {"knowledge": []}])
def test_tiers_without_a_hint_are_none(tiers: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="hints must be in the metadata of some tasks"):
        check({"allocator": "scaf_grpo"}, source_of("a", {"metadata": {"hints": tiers}}))


@pytest.mark.parametrize(
    "sections, metadata",
    [
        ({"curriculum": "hinted"}, {"hint": 7}),
        ({"allocator": "guide", "loss": "guide"}, {"hint": ""}),
        ({"allocator": "scaf_grpo"}, {"hints": ["a"]}),
        ({"curriculum": "sub_goals"}, {"sub_goals": "a"}),
    ],
)
def test_an_input_of_another_form_is_refused_with_its_task(sections: dict[str, Any], metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="task a/0"):
        check(sections, source_of("a", {"metadata": metadata}))


def test_hints_that_nobody_gets_are_not_needed() -> None:
    check({"curriculum": {"name": "hinted", "until": 0}}, source_of("a", {}))
    check({"curriculum": {"name": "hinted", "share": 0.0}}, source_of("a", {}))


@pytest.mark.parametrize("name", ["judge", "probed_judge", "tarl"])
def test_a_template_that_names_a_reference_is_refused_where_a_task_has_none(name: str) -> None:
    answered = source_of("a", {"payload": {"answer": "4"}})
    check({"annotate": [{"name": name, **NAMED}]}, answered)
    for payload in ({"secret": 4}, {"answer": None}, {"answer": ""}):
        with pytest.raises(SettingsError, match=r"answer must be in the payload of every task, got a task of b"):
            check({"annotate": [{"name": name, **NAMED}]}, answered, source_of("b", {"payload": payload}))


def test_tasks_that_have_what_is_read_start() -> None:
    """The graded sums carry all that curricula and allocators read."""
    sources = build_env_sources([EnvSettings(id=GRADED)], EvaluationSettings(tasks=1))
    for sections, _ in MISSING[:4]:
        check_task_inputs(build_method(train_settings({"envs": [{"id": GRADED}], **sections})).task_readers, sources)
    check({"curriculum": "bots"}, *sources.values())
    check({"allocator": "guide", "loss": "guide"}, *sources.values())
    check({"allocator": "scaf_grpo"}, *sources.values())


def test_every_method_and_wrapper_that_reads_tasks_declares_what_it_reads() -> None:
    reads = re.compile(r"task\.(?:metadata|payload)\b|metadata_(?:text|number)\(")
    folders = (ROOT / "trainer" / "methods", ROOT / "envgym" / "wrappers")
    readers = [path for folder in folders for path in folder.rglob("*.py") if reads.search(path.read_text("utf-8"))]
    assert len(readers) >= 8
    silent = {path.stem for path in readers if "def task_needs" not in path.read_text("utf-8")}
    assert silent == {"base", "writers"}, "helpers of curricula; `rewriter`, whose need is that of its base class"


@pytest.mark.parametrize("name", ["skill_bank", "withdrawn_skills"])
def test_a_skill_for_an_env_that_the_run_lacks_is_refused(name: str) -> None:
    skills = [{"name": "counting", "text": "Count on.", "envs": ["math/arithmetic"]}]
    method = build_method(
        train_settings({"envs": [{"id": ARITHMETIC}], "curriculum": {"name": name, "skills": skills}})
    )
    with pytest.raises(
        UnknownName, match=r"env must be a known name, got 'math/arithmetic' \(curriculum, skill counting"
    ):
        check_skills(method.curriculum, {ARITHMETIC: source_of(ARITHMETIC, {})})
    check_skills(method.curriculum, {"math/arithmetic": source_of("math/arithmetic", {})})


def test_a_hint_wrapper_whose_tasks_have_no_hint_is_refused() -> None:
    def sources(key: str) -> dict[str, EnvSource]:
        wrapper = {"name": "hint", "metadata_key": key}
        return build_env_sources(
            [EnvSettings.model_validate({"id": GRADED, "wrappers": [wrapper]})], EvaluationSettings(tasks=1)
        )

    check_wrapper_inputs(sources("hint"))
    with pytest.raises(SettingsError, match=r"hnt must be in the metadata of some tasks, got none .* wrapper hint"):
        check_wrapper_inputs(sources("hnt"))


def test_choices_that_are_likely_to_do_nothing_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    endless = build_env_sources([EnvSettings(id=ARITHMETIC)], EvaluationSettings(tasks=1))
    ending = {"a": source_of("a", {})}
    warn_of_idle_choices(HardPrompts(), ["judge"], [Annotated(annotation="judge")], ending)
    warn_of_idle_choices(Uniform(), [], [], endless)
    assert not caplog.records
    warn_of_idle_choices(HardPrompts(), [], [], endless)
    warn_of_idle_choices(Uniform(), ["judge"], [NoShaping()], ending)
    warn_of_idle_choices(Dump(), [], [], ending)
    first, second, third = caplog.messages
    assert first.startswith("curriculum HardPrompts chooses by results of earlier steps")
    assert second.startswith("annotations judge train nothing")
    assert third == "curriculum Dump chooses among envs, but there is one"
