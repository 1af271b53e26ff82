"""The guide's Python blocks are one module: it runs, and its environments pass the conformance suite."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import envgym
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


def test_entry_point_of_the_guide_names_the_registered_env(my_games: ModuleType) -> None:
    (table,) = blocks("toml")
    points = tomllib.loads(table)["project"]["entry-points"]["envgym.envs"]
    assert points == {"my_games/nim-v0": "my_games:Nim"}
    assert hasattr(my_games, "Nim")
