"""The envs of a run: checked before anything is loaded."""

import pytest

from envgym.authoring import GeneratedTasks
from envgym.errors import SettingsError, UnknownName
from envgym.trainer.settings import EnvSettings
from envgym.trainer.world import build_worlds, supplies

ARITHMETIC = EnvSettings(id="math/arithmetic-v0", weight=2.0)


def test_worlds_keep_label_and_weight() -> None:
    named = EnvSettings(id="math/arithmetic-v0", name="hard", settings={"level": 3})
    worlds = build_worlds([ARITHMETIC, named])
    assert [(item.name, item.weight, item.size) for item in supplies(worlds)] == [
        ("math/arithmetic-v0", 2.0, None),
        ("hard", 1.0, None),
    ]
    assert worlds["hard"].make() is not worlds["hard"].make()


def test_two_envs_of_one_label_are_refused() -> None:
    with pytest.raises(SettingsError, match="env name must be unique, got math/arithmetic-v0"):
        build_worlds([ARITHMETIC, ARITHMETIC])


def test_unknown_env_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean math/arithmetic-v0"):
        build_worlds([EnvSettings(id="math/arithmetik-v0")])


def test_env_without_train_tasks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GeneratedTasks, "size", lambda self, split: 0)
    with pytest.raises(SettingsError, match="train split must hold tasks, got none"):
        build_worlds([ARITHMETIC])
