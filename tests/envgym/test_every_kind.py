"""Every kind of plug-in: what its table names fits it, and what is of another kind is refused without a call."""

import inspect
import itertools
import re
import sys
from pathlib import Path

import pytest

from envgym.cli.plugin_kinds import KINDS
from envgym.errors import SettingsError

ENTRIES = [(kind, name) for kind in KINDS for name in KINDS[kind].table]


@pytest.mark.parametrize("kind, name", ENTRIES)
def test_entry_of_a_table_imports_fits_its_kind_and_is_documented(kind: str, name: str) -> None:
    plugin = KINDS[kind].load(name)
    summary = getattr(plugin, "summary", None) or inspect.getdoc(plugin)
    assert summary


@pytest.mark.parametrize("kind, other", list(itertools.permutations(KINDS, 2)))
def test_plugin_of_another_kind_is_refused(kind: str, other: str) -> None:
    path = next(iter(KINDS[other].table.values()))
    with pytest.raises(SettingsError, match=rf"^{kind}\.name must name a .*, got {re.escape(path)} "):
        KINDS[kind].load(path)


MODULE = '''
calls = []


class Recorder:
    """Record that it was made."""

    def __init__(self, *arguments, **settings):
        calls.append(arguments)


def factory(scale=1):
    """Return nothing that is known."""
    calls.append(scale)
'''


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_no_kind_is_never_called(kind: str, tmp_path: Path) -> None:
    (tmp_path / "recorder.py").write_text(MODULE)
    for name in ("Recorder", "factory"):
        with pytest.raises(SettingsError):
            KINDS[kind].load(f"{tmp_path}/recorder.py:{name}")
    (module,) = {module for name, module in sys.modules.items() if str(tmp_path) in str(vars(module).get("__file__"))}
    assert module.calls == []


@pytest.mark.parametrize("kind", KINDS)
def test_entry_points_belong_to_their_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "envgym_test_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envgym_test_kinds\nVersion: 1.0\n")
    name, path = next(iter(KINDS[kind].table.items()))
    (info / "entry_points.txt").write_text(f"[envgym.{kind}]\nmine = {path}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert KINDS[kind].names()[-1] == "mine"
    assert KINDS[kind].load("mine") is KINDS[kind].load(name)
