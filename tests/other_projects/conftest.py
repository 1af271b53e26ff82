"""Shared by the tests with other projects."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import ROOT

# inspect-ai knows an editable package by its installed metadata. Building leaves incomplete ones in the repository.
sys.path.sort(key=lambda path: Path(path).resolve() == ROOT)


@pytest.fixture
def inspect_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bring the entry point of this tree, whenever the package was installed; work in an empty folder."""
    info = tmp_path / "envgym_test_inspect-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envgym_test_inspect\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inspect_ai]\nenvgym = envgym.connect.inspect_task\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()  # what an eval leaves open is reported here, where it is ignored
