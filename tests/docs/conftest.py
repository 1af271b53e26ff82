"""The folder of a reader: the files that the pages show, and the runs that they speak of, made small."""

import shlex
import shutil
from pathlib import Path

import pytest

from envgym.cli.main import main
from tests.support.pages import SMALL, write_files


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files, train runs/demo and runs/first, and fit a value of the latter, once for all pages."""
    folder = tmp_path_factory.mktemp("reader")
    small = [word for setting in SMALL for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ENVGYM_CACHE", str(folder / "cache"))  # with the model, so that no page builds it again
        write_files(folder)
        for line in ("train examples/demo.yaml", "train first.yaml", "value runs/first --episodes 16"):
            words = shlex.split(line)
            assert main(words + small if words[0] == "train" else words) == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of its own with the files and the runs, from which files are imported."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVGYM_CACHE", str(trained / "cache"))  # of all pages: what one has built, the next ones read
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path
