"""The example scripts run, and are as short as they say."""

import ast
import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from envgym.conformance import CheckStatus, check_env_conformance

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_LINES = 15


@pytest.fixture
def custom_env() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("custom_env", EXAMPLES / "custom_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["custom_env"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["custom_env"]


def test_play_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "play_an_episode.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert "a wrong answer: 0.0" in lines
    assert "the right one:  1.0" in lines
    assert "components: {'answer': 1.0} ending: TERMINATED" in lines


@pytest.mark.parametrize("name", ["CountDown", "make_safe", "make_sums"])
def test_each_shape_passes_the_conformance_suite(custom_env: ModuleType, name: str) -> None:
    checks = check_env_conformance(getattr(custom_env, name), num_tasks=5)
    assert [check for check in checks if check.status is CheckStatus.FAIL] == []


@pytest.mark.parametrize(
    "file, name",
    [
        ("custom_env.py", "CountDown"),
        ("custom_env.py", "Safe"),
        ("custom_env.py", "letter_number"),
        ("third_party_env/word_games.py", "Backwards"),
        ("third_party_env/word_games.py", "draw"),
    ],
)
def test_an_environment_takes_at_most_15_lines_of_code(file: str, name: str) -> None:
    nodes = {node.name: node for node in ast.parse((EXAMPLES / file).read_text()).body if hasattr(node, "name")}
    node = nodes[name]
    text = (EXAMPLES / file).read_text().splitlines()[node.lineno - 1 : node.end_lineno]
    assert len([line for line in text if line.strip()]) <= MAX_LINES


def test_the_third_party_environment_takes_at_most_15_lines_in_all() -> None:
    lines = (EXAMPLES / "third_party_env" / "word_games.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= MAX_LINES
