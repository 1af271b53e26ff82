"""What environments print, while they are imported, made and played, goes to standard error: JSON stays JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.cli.main import main

NOISY = '''
import os
import sys

import envgym

print("noise: imported")
os.system("echo noise: of a child process")


class Tasks:
    def size(self, split):
        return 4

    def task(self, split, index):
        print("noise: a task")
        number = index if split == "train" else 10 + index
        return envgym.Task(id=f"{split}/{index}", prompt=f"Say {number}.", payload={"n": number}, split=split)


class Noisy(envgym.Env[int]):
    """Prints."""

    tasks = Tasks()

    def __init__(self, **settings):
        print("noise: made")
        super().__init__(**settings)

    def begin(self, task):
        print("noise: begun")
        sys.stdout.write("noise: written\\n")
        self.state = task.payload["n"]
        return task.prompt

    def respond(self, action):
        print("noise: stepped")
        return envgym.Reply(reward=float(action.content == str(self.state)), terminated=True)

    def oracle(self):
        return str(self.state)
'''


@pytest.fixture
def env(tmp_path: Path) -> str:
    (tmp_path / "noisy.py").write_text(NOISY)
    return f"{tmp_path / 'noisy.py'}:Noisy"


COMMANDS = (
    ["tasks", "ENV", "--json"],
    ["show", "ENV", "--json"],
    ["check", "ENV", "--json"],
    ["eval", "--model", "tiny", "--env", "ENV", "--tasks", "2", "--out", "OUT", "--json"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_json_of_a_command_is_all_that_stands_in_standard_output(
    words: list[str], env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([{"ENV": env, "OUT": str(tmp_path / "run")}.get(word, word) for word in words])
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "noise" in err


def test_json_of_a_process_is_free_of_what_its_children_print(env: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "envgym", "tasks", env, "--json"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert len(json.loads(result.stdout)) == 4
    assert "noise: of a child process" in result.stderr


def test_output_for_a_person_keeps_the_prints(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tasks", env])
    assert "noise: a task" in capsys.readouterr().out
