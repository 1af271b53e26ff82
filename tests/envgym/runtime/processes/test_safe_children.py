"""A child imports nothing from its working directory, which may be a run directory that somebody sent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.cli.common import import_from_here
from envgym.runtime.processes.handles import LocalStarter, import_variables, words_of

ROOT = Path(__file__).resolve().parents[4]
NAMES = ("envgym", "agents", "trainer", "envs", "json", "torch", "numpy", "sitecustomize", "usercustomize", "yaml")


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder whose files are named as modules; each leaves a mark when it is imported."""
    folder = tmp_path / "sent"
    folder.mkdir()
    mark = tmp_path / "imported"
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    return mark


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.parametrize("path", [None, "", ":", ".", f":{ROOT}", f"{ROOT}:", "sub:."])
def test_child_imports_nothing_from_where_it_is(sent: Path, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    process = LocalStarter().start("env-server-0", ("--version",), {})
    assert b"".join(process.lines()).startswith(b"envgym ")
    process.wait()
    assert process.returncode == 0
    assert not sent.exists()


@pytest.mark.processes
def test_an_env_server_of_a_run_imports_nothing_from_its_working_directory(sent: Path) -> None:
    process = LocalStarter().start("env-server-0", ("serve", "math/arithmetic-v0", "--port", "0"), {})
    first = next(process.lines())
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert first.startswith(b"http://127.0.0.1:")
    assert not sent.exists()


def test_every_python_that_the_package_starts_has_a_safe_path() -> None:
    places = [path for folder in ("envgym", "agents", "trainer", "envs") for path in (ROOT / folder).rglob("*.py")]
    lines = [(path, line) for path in places for line in path.read_text(encoding="utf-8").splitlines()]
    started = [(path, line) for path, line in lines if "[sys.executable," in line]
    assert len(started) >= 5
    assert [(path.name, line) for path, line in started if not any(flag in line for flag in SAFE)] == []


SAFE = ('"-P"', '"-I"', '"-B", "-E", "-S", "-m", module')
"""The last runs in the sandbox, whose working directory holds the files of the task's own servers."""


def test_relative_entries_of_the_path_are_dropped() -> None:
    path = os.pathsep.join(["", ".", "here", "/a", "./b"])
    assert import_variables({"PYTHONPATH": path}) == {"PYTHONPATH": "/a"}
    assert words_of(("serve",))[1:4] == ["-P", "-m", "envgym"]


def test_a_named_file_is_imported_with_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'from the neighbour'\n", encoding="utf-8")
    (tmp_path / "my_env.py").write_text(
        "from envgym.core.tasks import Split, Task\nfrom envgym.env import Env\nfrom envgym.records import Reply\n"
        "import neighbour\n\n\nclass Tasks:\n    def size(self, split):\n        return 1\n\n"
        "    def task(self, split, index):\n"
        "        return Task(id='a', prompt=neighbour.WORD, payload={}, split=split)\n\n\n"
        "class MyEnv(Env[None]):\n    tasks = Tasks()\n\n    def begin(self, task):\n        return task.prompt\n\n"
        "    def respond(self, action):\n        return Reply(terminated=True)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    process = LocalStarter().start("env-server-0", ("serve", "my_env.py:MyEnv", "--port", "0"), {})
    first = next(process.lines())
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert b"my_env.py:MyEnv" in first


def test_working_directory_comes_last_unless_settings_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for settings, place in (
        ({"a": "b"}, None),
        ({"a": "x.py:Y"}, -1),
        (["other.module:Y"], -1),
        ([{"a": "mine:Y"}], 0),
    ):
        monkeypatch.setattr(sys, "path", list(sys.path))
        before = list(sys.path)
        import_from_here(settings)
        added = [path for path in sys.path if path not in before]
        assert added == ([] if place is None else [str(tmp_path)])
        if place is not None:
            assert sys.path[place] == str(tmp_path)
        sys.path[:] = before
