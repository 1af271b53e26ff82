"""The page of exported models: commands and program run in order, with a small model and a Hub on this machine."""

import shlex
from pathlib import Path
from typing import Final

import pytest
from huggingface_hub import constants

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from tests.support.hub import TOKEN, stub_hub
from tests.support.pages import SMALL, blocks_of

PAGE: Final = "docs/use_the_model.md"
NOT_RUN: Final = ("pip install 'envgym[hub]'", "hf auth login")
"""Installs packages from an index; asks for a token."""
SMALLER: Final = {"train": [word for setting in SMALL for word in ("--set", setting)], "eval": ["--tasks", "2"]}


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of httpx, as huggingface_hub calls it
def test_the_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stub has the older way of uploads, LFS
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for block in blocks_of(PAGE, "bash", "python"):
            if block.language == "python":
                exec(block.text, {"__name__": "page"})
                continue
            for line in block.commands:
                if line not in NOT_RUN:
                    words = shlex.split(line)
                    assert main([*words[1:], *SMALLER.get(words[1], [])]) == 0, line
        assert hub.files.keys() == {file.name for file in Path("adapters-model").iterdir()}
        assert hub.is_private
    assert f"adapters-model is at {hub.url}/me/adapters" in capsys.readouterr().out
    (evaluated,) = (path for path in Path("runs").glob("eval-*adapters-model*"))
    assert len(RunDirectory.open(evaluated).evals()) == 1
