"""The door to verifiers where that package is missing; tests/other_projects has those with the package."""

import importlib
import sys

import pytest

from envgym.errors import InvalidInput


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    for name in ("envgym_verifiers", "envgym.connect.verifiers", "verifiers.v1"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InvalidInput, match=r"verifiers must be installed, at least 0\.4.*pip install verifiers"):
        importlib.import_module("envgym_verifiers")
