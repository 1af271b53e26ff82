"""A folder to work in: a world that an untrained model half solves, and the settings of a run of seconds."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.cli.main import main

WORLD = '''
"""Say vowels: the reward is their share."""

from dataclasses import dataclass

import envgym
from envgym.core.tasks import split_of


class Tasks:
    def size(self, split):
        return None

    def task(self, split, index):
        for number in range(64 * index, 64 * index + 64):
            if split_of({"number": number}) is split:
                payload = {"number": number}
                return envgym.Task(id=f"{split}/{index}", prompt=f"Vowels {number}", payload=payload, split=split)
        raise IndexError(index)


@dataclass
class State:
    number: int


class Vowels(envgym.Env[State]):
    tasks = Tasks()

    def __init__(self, *, breaks: bool = False, **settings):
        super().__init__(**settings)
        self.breaks = breaks

    def begin(self, task):
        self.state = State(number=task.payload["number"])
        return task.prompt

    def respond(self, action):
        if self.breaks:
            raise OSError("the world is gone")
        share = sum(letter in "aeiou" for letter in action.content) / max(len(action.content), 1)
        return envgym.Reply(reward=share, terminated=True)

    def oracle(self):
        return "aeiou"
'''
SHAPE = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}
SETTINGS: dict[str, Any] = {  # a YAML file
    "run": {"name": "vowels", "steps": 2, "checkpoint_every": 1, "trackers": ["progress"]},
    "model": {"name": "tiny", "tiny": SHAPE},
    "engine": {"device": "cpu"},
    "envs": [{"id": "worlds:Vowels"}],
    "agent": {"name": "plain", "max_turn_tokens": 12, "max_context_tokens": 256, "on_length": "close"},
    "rollout": {"groups": 4, "group_size": 4},
    "optim": {"lr": 0.003},
    "evaluation": {"tasks": 6, "temperature": 1.0, "success_at": 0.05},
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with two checkpoints, whose settings name nothing of ours."""
    from envgym.trainer.settings import train_settings
    from envgym.trainer.train import train

    path = tmp_path_factory.mktemp("trained") / "run"
    run = {"name": "sent", "directory": str(path), "steps": 2, "checkpoint_every": 1, "trackers": []}
    settings = train_settings(
        {
            "run": run,
            "model": {"name": "tiny", "tiny": SHAPE},
            "engine": {"device": "cpu"},
            "envs": [{"id": "math/arithmetic-v0"}],
            "agent": {"name": "plain", "max_turn_tokens": 4, "max_context_tokens": 400},
            "rollout": {"groups": 1, "group_size": 2},
            "evaluation": {"tasks": 1},
        }
    )
    train(settings)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "worlds.py").write_text(WORLD)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SETTINGS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what runs a command line in the folder and gives exit code, standard output and standard error."""
    del folder  # only to be there

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def out(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Return what runs a command line and gives standard output; the test's module can be named `toy_defects` in it."""
    monkeypatch.setitem(sys.modules, "toy_defects", request.module)

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def files(folder: Path) -> Callable[[], dict[str, bytes]]:
    return lambda: {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Handle SIGINT, which a process that was started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
