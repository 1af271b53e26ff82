"""What of tasks of inspect-ai needs no package: scores as rewards, and the sentences before it is imported."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import envgym
from envgym.connect import inspect_env
from envgym.connect.inspect_env import number_of, reward_of
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[3]
NAN = float("nan")


def score(value: object, explanation: str | None = None) -> Any:
    return SimpleNamespace(value=value, explanation=explanation)


@pytest.mark.parametrize(
    "value, number",
    [
        ("C", 1.0),
        ("P", 0.5),
        ("I", 0.0),
        ("N", 0.0),
        ("Yes", 1.0),
        ("FALSE", 0.0),
        ("0.75", 0.75),
        (True, 1.0),
        (0, 0.0),
        (0.3, 0.3),
    ],
)
def test_a_value_stands_for_a_number(value: object, number: float) -> None:
    assert number_of(value) == number


@pytest.mark.parametrize("value", [None, NAN, float("inf"), "nan", "c", "maybe", "", [1.0], {"a": 1.0}])
def test_other_values_stand_for_none(value: object) -> None:
    assert number_of(value) is None


def test_all_scores_are_components_and_one_pays() -> None:
    scores = {
        "match": score("C"),
        "words": score({"f1": 0.5, "em": "I", "note": "x"}),
        "judge": None,
        "late": score(NAN),
    }
    parts = {"match": 1.0, "words/f1": 0.5, "words/em": 0.0}
    assert reward_of(scores, "match", None, where="here") == Scored(value=1.0, components=parts)
    assert reward_of(scores, "words", "f1", where="here") == Scored(value=0.5, components=parts)


@pytest.mark.parametrize(
    "paying, key, got",
    [
        ("judge", None, "got None"),
        ("late", None, "got nan: no reply"),
        ("words", None, "got {'f1': 0.5}"),
        ("words", "em", "got None"),
        ("match", "f1", ""),
    ],
)
def test_a_score_without_a_number_is_no_reward(paying: str, key: str | None, got: str) -> None:
    scores = {"match": score("maybe"), "words": score({"f1": 0.5}), "judge": None, "late": score(NAN, "no reply")}
    reward = reward_of(scores, paying, key, where="here")
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_ENV
    assert f"score of {paying} must be a number, or one of C, P, I and N, " in reward.reason
    assert got in reward.reason


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_env, "find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"no inspect_ai \(make\); pip install 'envgym\[inspect\]'"):
        envgym.make("inspect://inspect_evals/gsm8k")


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"timeout_s": 0}, "timeout_s must be above 0, got 0"),
        ({"test_share": 1.5}, r"test_share must lie in \[0, 1\], got 1.5"),
        ({"reward_range": [1, 0]}, "reward_range must be two numbers"),
        ({"task_args": {"names": {"a"}}}, "task_args must have a form in JSON"),
        ({"shuffle": True}, "shuffle"),
    ],
)
def test_settings_are_checked_before_the_task_is_made(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_env, "find_spec", lambda _: True)
    with pytest.raises(InvalidInput, match=sentence):
        envgym.make("inspect://inspect_evals/gsm8k", **settings)


def test_inspect_finds_our_tasks_by_an_entry_point() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["inspect_ai"]
    point = EntryPoint(name="envgym", value=points["envgym"], group="inspect_ai")
    assert list(points) == ["envgym"]
    assert (ROOT / f"{point.module.replace('.', '/')}.py").is_file()
