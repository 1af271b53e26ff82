"""The guide's Python blocks are one module: it runs, and its environments pass the conformance suite."""

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import envgym
from envgym import Split, Task
from envgym.conformance import CheckStatus, check_env_conformance

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "write_an_environment.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def my_games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Import the guide as the module that it says it is; its own assertions run here."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "my_games.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("my_games")
    sys.path.remove(str(folder))
    del sys.modules["my_games"]


def test_guide_has_its_parts() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for part in (
        "tasks and a rubric",
        "Tools",
        "Verifiers",
        "splits",
        "invalid",
        "Copies",
        "oracle",
        "card",
        "Publish",
    ):
        assert part in text
    assert len(blocks("python")) >= 10


@pytest.mark.parametrize(
    "name, kwargs",
    [("Sums", {}), ("SafeEnv", {}), ("Nim", {"max_turns": 200}), ("OpenBook", {"max_turns": 4}), ("QuickNim", {})],
)
def test_environment_of_the_guide_passes_the_suite(my_games: ModuleType, name: str, kwargs: dict[str, int]) -> None:
    checks = check_env_conformance(lambda: envgym.make(f"{my_games.__name__}:{name}", **kwargs), num_tasks=5)
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []


def test_columns_of_the_guide_are_read(my_games: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"^# (\{.+\})$", "\n".join(blocks("python")), re.MULTILINE)
    kenya = {"question": "Capital of Kenya?", "capital": "Nairobi", "region": "Africa", "code": "KE", "side": "train"}
    Path("capitals.jsonl").write_text(f"{shown}\n{json.dumps(kenya)}\n", encoding="utf-8")
    payload = {"prompt": "Capital of Peru?", "answer": "Lima"}
    assert my_games.capitals.task(Split.TEST, 0) == Task(
        id="PE", prompt="Capital of Peru?", payload=payload, split=Split.TEST, metadata={"region": "America"}
    )
    assert my_games.capitals.task(Split.TRAIN, 0).id == "KE"


def test_official_split_is_that_of_files(my_games: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held-out row is left out of the other file."""
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"question": f"{n}?", "solution": str(n)}) + "\n" for n in range(4)]
    Path("old.jsonl").write_text("".join(rows), encoding="utf-8")
    Path("new.jsonl").write_text(rows[3], encoding="utf-8")
    assert [my_games.two_files.size(split) for split in (Split.TRAIN, Split.TEST)] == [3, 1]


def test_entry_point_of_the_guide_names_the_registered_env(my_games: ModuleType) -> None:
    (table,) = blocks("toml")
    points = tomllib.loads(table)["project"]["entry-points"]["envgym.envs"]
    assert points == {"my_games/nim-v0": "my_games:Nim"}
    assert hasattr(my_games, "Nim")
