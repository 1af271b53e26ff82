"""The program of the page on policy servers connects to a server."""

from pathlib import Path
from typing import Any

import pytest

from tests.agents.policies.serving.running import serving
from tests.agents.policies.small_models import llama
from tests.support.pages import blocks_of


def test_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks_of("docs/policy_servers.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with serving(llama()) as server:
        exec(block.text.replace("http://127.0.0.1:8001", server.http.url), names)
    assert type(names["policy"]).__name__ == "ServedPolicy"
