"""The envs of a run: checked before anything is loaded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.settings import EnvSettings, EvaluationSettings
from envgym.authoring import GeneratedTasks
from envgym.config.plugins import Choice
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.trainer.env_source import EnvSource, TaskPool, _split_remedy, build_env_sources, decontaminate
from envgym.trainer.settings import DecontaminationSettings

ARITHMETIC = EnvSettings(id="math/arithmetic-v0", weight=2.0)


def build(envs: Sequence[EnvSettings]) -> dict[str, EnvSource]:
    return build_env_sources(envs, EvaluationSettings(tasks=3))


def test_worlds_keep_label_and_weight() -> None:
    named = EnvSettings(id="math/arithmetic-v0", name="hard", settings={"level": 3})
    env_sources = build([ARITHMETIC, named])
    assert [(item.name, item.weight, item.size) for item in TaskPool(env_sources).supplies()] == [
        ("math/arithmetic-v0", 2.0, None),
        ("hard", 1.0, None),
    ]
    assert env_sources["hard"].make() is not env_sources["hard"].make()


def test_run_keeps_its_envs_while_their_files_change(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    source = """
from envgym.wrappers.base import Wrapper
from tests.support.toys import Counter
class Mine(Counter):
    version = {0}
class Wrapped(Wrapper):
    version = {0}
"""
    path.write_text(source.format(1))
    spec = EnvSettings(id=f"{path}:Mine", wrappers=(Choice(name=f"{path}:Wrapped"),))
    before = build([spec])[spec.label]
    path.write_text(source.format(2))
    envs: list[Any] = [before.make(), build([spec])[spec.label].make()]
    assert [(env.version, env.unwrapped.version) for env in envs] == [(1, 1), (2, 2)]


def test_no_train_task_has_a_held_out_text() -> None:
    # level 1: "3 + 4"-like texts, which differ in numbers alone
    env_sources = build([EnvSettings(id="math/arithmetic-v0", settings={"level": 1})])
    (label,), held_out = env_sources, next(iter(env_sources.values())).held_out
    copies = {task.prompt for task in held_out}

    class Leaking:
        def size(self, split: Split) -> int | None:
            return 6

        def task(self, split: Split, index: int) -> Task:
            text = held_out[index // 2].prompt if index % 2 else f"alpha beta gamma {index}"
            return Task(id=f"{split}/{index}", prompt=text, payload={"n": index}, split=split)

    leaking = {label: replace(env_sources[label], tasks=Leaking())}
    settings = DecontaminationSettings(ngram=3, share=0.9)
    (clean,) = decontaminate(leaking, settings).values()
    assert [clean.tasks.task(Split.TRAIN, index).prompt for index in range(3)] == [
        f"alpha beta gamma {index}" for index in (0, 2, 4)
    ]
    assert clean.tasks.size(Split.TRAIN) == 3
    assert {leaking[label].tasks.task(Split.TRAIN, index).prompt for index in (1, 3, 5)} == copies
    assert decontaminate(leaking, None) == leaking


def test_two_envs_of_one_label_are_refused() -> None:
    with pytest.raises(SettingsError, match="env name must be unique, got math/arithmetic-v0"):
        build([ARITHMETIC, ARITHMETIC])


def test_unknown_env_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean math/arithmetic-v0"):
        build([EnvSettings(id="math/arithmetik-v0")])


def test_two_labels_of_one_file_are_refused() -> None:
    with pytest.raises(SettingsError, match="math/arithmetic-v0 and math_arithmetic-v0, whose files have one name"):
        build([ARITHMETIC, EnvSettings(id="puzzles/guess_number-v0", name="math_arithmetic-v0")])


def test_held_out_tasks_are_the_first_of_the_test_split() -> None:
    tasks = build([ARITHMETIC])["math/arithmetic-v0"].held_out
    assert [(task.id, task.split) for task in tasks] == [(f"test/{n}", Split.TEST) for n in range(3)]


@pytest.mark.parametrize("empty", Split)
def test_env_without_tasks_in_a_split_is_refused(empty: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GeneratedTasks, "size", lambda self, split: 0 if split is empty else None)
    with pytest.raises(SettingsError, match=f"{empty} split must hold tasks, got none"):
        build([ARITHMETIC])


def test_an_empty_split_names_the_settings_that_divide_the_tasks() -> None:
    class Folder:
        def __init__(self, *, splits: object = None, test_share: float = 0.2) -> None: ...

    assert _split_remedy(Folder) == "set splits or test_share of the environment"
    assert _split_remedy(object) == "choose settings, or a source, with both splits"


def test_more_held_out_tasks_than_an_endless_supply_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build([ARITHMETIC])["math/arithmetic-v0"].held_out[0]
    monkeypatch.setattr(GeneratedTasks, "task", lambda self, split, index: task)
    with pytest.raises(InvalidInput, match="number of distinct tasks must be at most"):
        build([ARITHMETIC])
