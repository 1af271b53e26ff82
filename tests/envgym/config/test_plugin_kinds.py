"""A kind of plug-in: what fits it, judged without a call, and what its settings make of it."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from envgym.config.plugins import Choice, PluginKind
from envgym.config.settings import Settings
from envgym.errors import SettingsError, UnknownName

HERE = __name__
calls: list[str] = []


class Scale(Protocol):
    """Scales numbers."""

    def __call__(self, values: Sequence[float]) -> Sequence[float]:
        """Return the numbers, scaled."""
        ...


class Times(Settings):
    """Multiply by a factor."""

    factor: float = 2.0

    def __call__(self, values: Sequence[float]) -> list[float]:
        """Return the products."""
        return [self.factor * value for value in values]


class OtherArguments:
    """Takes other arguments than a scale."""

    def __init__(self) -> None:
        """Record the call."""
        calls.append("OtherArguments")

    def __call__(self, numbers: Sequence[float]) -> list[float]:
        """Return nothing."""
        return []


class OtherResult(OtherArguments):
    """Returns something else than a scale does."""

    def __call__(self, values: Sequence[float]) -> dict[str, float]:  # type: ignore[override]  # it is the point
        """Return a mapping."""
        return {}


class Waiting(OtherArguments):
    """Is awaited, as a scale is not."""

    async def __call__(self, values: Sequence[float]) -> list[float]:  # type: ignore[override]  # it is the point
        """Return nothing."""
        return []


def halves(factor: float = 0.5) -> Times:
    """Return a scale of another default."""
    return Times(factor=factor)


def unannotated(factor: float = 0.5):  # type: ignore[no-untyped-def]  # it is the point
    """Return a scale, and do not say so."""
    calls.append("unannotated")
    return Times(factor=factor)


def negative(values: Sequence[float]) -> list[float]:
    """Return the numbers with the other sign."""
    return [-value for value in values]


TWICE = Times()

SCALE: PluginKind[Scale] = PluginKind(
    name="scale", protocols=(f"{HERE}:Scale",), table={"times": f"{HERE}:Times"}, is_function=True
)


def refusal(name: str, **settings: object) -> str:
    """Return the message with which a choice is refused, and see that nothing was called."""
    calls.clear()
    with pytest.raises(SettingsError) as caught:
        SCALE.build(Choice.model_validate({"name": name, **settings}))
    assert calls == []
    return str(caught.value)


@pytest.mark.parametrize(
    "choice, expected",
    [
        ("times", [2.0]),
        ({"name": "times", "factor": 3.0}, [3.0]),
        (f"{HERE}:Times", [2.0]),
        ({"name": f"{HERE}:halves", "factor": 0.25}, [0.25]),
        (f"{HERE}:negative", [-1.0]),
        (f"{HERE}:TWICE", [2.0]),
    ],
)
def test_class_factory_function_and_instance_are_plugins(choice: object, expected: list[float]) -> None:
    assert SCALE.build(Choice.model_validate(choice))([1.0]) == expected


@pytest.mark.parametrize(
    "name, reason",
    [
        ("OtherArguments", "OtherArguments.__call__ must take (values)"),
        ("OtherResult", "OtherResult.__call__ must return collections.abc.Sequence[float], not dict[str, float]"),
        ("Waiting", "Waiting.__call__ must be a plain function"),
        ("Scale", "Scale is abstract"),
        ("unannotated", "__call__ must take (values)"),
        ("HERE", "str has no method __call__"),
    ],
)
def test_what_is_of_another_kind_is_refused_without_a_call(name: str, reason: str) -> None:
    assert refusal(f"{HERE}:{name}") == (
        f"scale.name must name a scale, got {HERE}:{name} ({reason}); name a class with the methods of Scale."
    )


@pytest.mark.parametrize("name", ["negative", "TWICE"])
def test_settings_for_what_takes_none_are_refused(name: str) -> None:
    text = refusal(f"{HERE}:{name}", factor=1.0)
    assert text.startswith("settings must be left out where none are taken, got factor (scale ")


def test_unknown_name_is_offered_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"scale must be a known name, got 'time' \(settings\); did you mean times\?"):
        SCALE.load("time")


FILE = '''
from envgym.config.settings import Settings

times_imported = []


class Plus(Settings):
    """Add a number."""

    amount: float = 1.0

    def __call__(self, values):
        return [value + self.amount for value in values]
'''


def test_class_of_a_file_is_imported_once_and_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plus.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    scale = SCALE.build(Choice.model_validate({"name": "plus.py:Plus", "amount": 2.0}))
    assert scale([1.0]) == [3.0]
    assert SCALE.load(f"{tmp_path}/plus.py:Plus") is type(scale)
    assert pickle.loads(pickle.dumps(scale)) == scale


def test_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plus.py").write_text(FILE)
    first, second = (SCALE.load(f"{tmp_path}/{folder}/plus.py:Plus") for folder in ("a", "b"))
    assert first is not second


def test_file_that_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert "name an importable class" in refusal(f"{tmp_path}/broken.py:Plus")
    assert "division by zero" in refusal(f"{tmp_path}/broken.py:Plus")
    assert f"(no file {tmp_path}/none.py, but broken.py)" in refusal(f"{tmp_path}/none.py:Plus")
