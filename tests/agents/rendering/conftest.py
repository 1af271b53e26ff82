"""Real tokenizers for the rendering tests, each loaded once; what cannot be had here is skipped with its reason."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym.agents.models.loading import load_tokenizer
from envgym.agents.models.tiny import tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[3]
GetTokenizer = Callable[[str], "PreTrainedTokenizerFast"]


@cache
def _load(name: str) -> "PreTrainedTokenizerFast | str":
    """Return the tokenizer, or why it cannot be had."""
    if name == "tiny":
        return tiny_tokenizer()
    command = [sys.executable, str(ROOT / "scripts" / "fetch_tokenizers.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return load_tokenizer(done.stdout.strip()) if done.returncode == 0 else done.stderr.strip()


@pytest.fixture
def get_tokenizer() -> GetTokenizer:
    """Return a function from a name to its tokenizer; it skips the test where the tokenizer cannot be had."""

    def get(name: str) -> "PreTrainedTokenizerFast":
        loaded = _load(name)
        if isinstance(loaded, str):
            pytest.skip(loaded)
        return loaded

    return get
