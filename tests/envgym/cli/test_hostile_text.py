"""No text of an environment, a tool, a file or a command line is obeyed by the terminal."""

import ast
import io
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

import envgym.cli

Command = Callable[..., tuple[int, str, str]]
HOSTILE = "\033]0;title\a\033[2J\x9b31m\rx\b\x7f\u202egpj.exe\u2066\u200b\U000e0041"
SHOWN = "\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\rx\\b\\u007f\\u202egpj.exe\\u2066\\u200b\\udb40\\udc41"
WORLD = f'''
"""Hostile {HOSTILE.encode("unicode_escape").decode()} words."""

import envgym
from envgym.authoring import ListTasks
from envgym.core.tasks import Split, Task
from envgym.errors import ToolError

TEXT = {HOSTILE!r}


class Hostile(envgym.Env[int]):
    """Say \\x1b[2J hostile things."""

    system_prompt = TEXT

    def __init__(self, *, shown_by_check: bool = False, **settings):
        super().__init__(**settings)
        self.shown_by_check = shown_by_check

    tasks = ListTasks([Task(id=TEXT + str(i), prompt=TEXT, payload={{TEXT: i}}, split=Split(s))
                       for i, s in enumerate(("train", "test"))])

    def begin(self, task):
        self.state = 0
        return task.prompt

    @envgym.tool
    def look(self) -> str:
        """Look."""
        return TEXT

    @envgym.tool
    def fail(self) -> str:
        """Fail."""
        raise ToolError(TEXT)

    def respond(self, action):
        if "break" in action:
            raise OSError(TEXT)
        return envgym.Reply(observation=TEXT + action, reward=1.0, terminated=True)

    def oracle(self):
        if self.shown_by_check:
            raise OSError(TEXT)
        return TEXT
'''


@pytest.fixture
def hostile(folder: Path) -> str:
    (folder / "hostile_world.py").write_text(WORLD)
    return "hostile_world:Hostile"


def is_harmless(text: str) -> bool:
    return not {unicodedata.category(char) for char in text if char not in "\n\t"} & {"Cc", "Cf", "Zl", "Zp", "Cs"}


@pytest.mark.parametrize(
    "words",
    [
        ("play", "ENV", "--oracle"),
        ("show", "ENV"),
        ("show", "ENV", "--json"),
        ("tasks", "ENV", "--answers"),
        ("check", "ENV", "-n", "1", "--only", "oracle_reaches_optimum", "--set", "shown_by_check=true"),
        ("play", "ENV", "--set", f"{HOSTILE}=1"),
        ("play", f"{HOSTILE}/x-v0"),
        (HOSTILE,),
        ("play", "ENV", f"--{HOSTILE}"),
        ("train", f"{HOSTILE}.yaml"),
        ("view", HOSTILE),
    ],
    ids=lambda words: f"{words[0]!r}"[1:6],
)
def test_what_a_command_writes_is_harmless(command: Command, hostile: str, words: tuple[str, ...]) -> None:
    _, out, err = command(*(hostile if word == "ENV" else word for word in words))
    assert is_harmless(out + err)
    assert "u001b" in out + err or "x1b" in out + err, "it is shown, not left out"


def test_what_a_player_meets_is_harmless(command: Command, hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in (HOSTILE, "break"):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"/look\n/fail\n/{HOSTILE}\n{last}\n"))
        _, out, err = command("play", hostile)
        assert is_harmless(out + err)
        assert out.count(SHOWN) >= 5
        assert SHOWN in err


def test_json_is_the_same_json(command: Command, hostile: str) -> None:
    tasks = json.loads(command("tasks", hostile, "--json", "--answers")[1])
    assert [task["prompt"] for task in tasks] == [HOSTILE]


def test_commands_write_through_the_one_helper() -> None:
    for path in Path(envgym.cli.__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        names = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
        assert names.count("print") == (path.name == "common.py"), f"{path.name} must write with echo"
