"""Files named by their path import the modules of their own folder, from anywhere, and without clashes."""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import envgym
from envgym.config.file_imports import import_file
from envgym.config.plugins import import_path
from envgym.errors import InvalidInput

ENV = '''
import envgym
from {module} import WORD, Word
from {package} import inner
from {package}.inner import DEEP


class Tasks:
    def size(self, split):
        return 3

    def task(self, split, index):
        return envgym.Task(id=f"{{split}}/{{index}}", prompt=WORD, payload={{"n": index}}, split=split)


class Said(envgym.Env[None]):
    """Says a word."""

    tasks = Tasks()

    def begin(self, task):
        import {late}
        self.state = None
        return f"{{WORD}} {{DEEP}} {{inner.WORD}} {{{late}.WORD}} {{Word().text}}"

    def respond(self, action):
        return envgym.Reply(terminated=True)
'''


def write_folder(folder: Path, word: str, *, module: str, package: str, late: str) -> Path:
    (folder / package).mkdir(parents=True)
    (folder / f"{module}.py").write_text(
        f"from {package} import inner\nWORD = {word!r}\n\n\nclass Word:\n    text = inner.DEEP\n"
    )
    (folder / package / "__init__.py").write_text("from . import inner\n")
    (folder / package / "inner.py").write_text(f"import {late}\nWORD = {late}.WORD\nDEEP = {'deep ' + word!r}\n")
    (folder / f"{late}.py").write_text(f"WORD = {'late ' + word!r}\n")
    env = folder / "my_env.py"
    env.write_text(ENV.format(module=module, package=package, late=late))
    return env


def first_words(env: Path) -> str:
    return str(envgym.make(f"{env}:Said").reset(seed=0).observation)


NAMES = {"module": "words_nearby", "package": "parts_nearby", "late": "late_nearby"}


def test_a_file_imports_its_neighbours_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = write_folder(tmp_path / "a", "one", **NAMES)
    monkeypatch.chdir("/")
    assert first_words(env) == "one deep one late one late one deep one"
    assert str(tmp_path / "a") not in sys.path


def test_files_in_two_folders_have_their_own_neighbours_of_one_name(tmp_path: Path) -> None:
    envs = [write_folder(tmp_path / word, word, **NAMES) for word in ("one", "two", "three")]
    made = [envgym.make(f"{env}:Said") for env in envs]
    for _ in range(2):
        for env, word in zip(made, ("one", "two", "three"), strict=True):
            assert str(env.reset(seed=0).observation) == f"{word} deep {word} late {word} late {word} deep {word}"


def test_two_files_of_a_folder_share_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "shared_nearby.py").write_text("class Thing: pass\n")
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text("from shared_nearby import Thing\n")
    first, second = (import_path(f"{tmp_path / name}.py:Thing") for name in ("first", "second"))
    assert first is second
    assert pickle.loads(pickle.dumps(first)) is first


def test_neighbours_come_before_installed_modules_but_not_before_the_standard_library(tmp_path: Path) -> None:
    for name in ("datasets", "json", "envgym"):
        (tmp_path / f"{name}.py").write_text("WORD = 'nearby'\n")
    (tmp_path / "file.py").write_text("import datasets, json, envgym\nWORD = datasets.WORD\n")
    module = import_file(tmp_path / "file.py")
    assert (module.WORD, module.json.__name__, module.envgym is envgym) == ("nearby", "json", True)
    assert not hasattr(module.json, "WORD")
    installed = importlib.import_module("datasets")
    assert not hasattr(installed, "WORD"), "only the files of the folder see its own"


def test_a_folder_without_code_is_no_neighbour(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "file.py").write_text("import numpy\nWORD = numpy.int64(3)\n")
    assert import_file(tmp_path / "file.py").WORD == 3


def test_a_neighbour_that_changed_is_read_again_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "changing_nearby.py").write_text("WORD = 1\n")
    (tmp_path / "file.py").write_text("from changing_nearby import WORD\n")
    assert import_file(tmp_path / "file.py").WORD == 1
    (tmp_path / "changing_nearby.py").write_text("WORD = 2\n")
    (tmp_path / "file.py").write_text("from changing_nearby import WORD  # again\n")
    assert import_file(tmp_path / "file.py").WORD == 2


def test_a_neighbour_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "failing_nearby.py").write_text("raise ValueError('broken')\n")
    (tmp_path / "file.py").write_text("import failing_nearby\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            import_file(tmp_path / "file.py")
    assert "failing_nearby" not in sys.modules


def test_a_module_that_is_nowhere_is_named_in_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("import nowhere_at_all\n\nclass A: pass\n")
    with pytest.raises(InvalidInput, match="install nowhere_at_all, or put the module into the folder of the file"):
        envgym.make(f"{tmp_path / 'file.py'}:A")


def test_the_command_line_finds_neighbours_from_another_folder(tmp_path: Path) -> None:
    env = write_folder(tmp_path / "a", "one", **NAMES)
    command = [sys.executable, "-m", "envgym", "tasks", f"{env}:Said", "-n", "1"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "  one"), result.stderr
