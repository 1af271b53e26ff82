"""Real tokenizers for the rendering tests, each loaded once; what cannot be had here is skipped with its reason."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

from envgym.agents.models.loading import load_tokenizer
from envgym.agents.models.tiny import tiny_tokenizer
from scripts.fetch_tokenizers import Unavailable, fetch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GetTokenizer = Callable[[str], "PreTrainedTokenizerFast"]


@cache
def _load(name: str) -> "PreTrainedTokenizerFast | str":
    if name == "tiny":
        return tiny_tokenizer()
    try:
        with warnings.catch_warnings():  # of the libraries that convert a tokenizer at its first use
            warnings.simplefilter("ignore")
            directory = fetch(name)
    except Unavailable as reason:
        return str(reason)
    return load_tokenizer(str(directory))


@pytest.fixture
def get_tokenizer() -> GetTokenizer:
    """Return a function from a name to its tokenizer; it skips the test where the tokenizer cannot be had."""

    def get(name: str) -> "PreTrainedTokenizerFast":
        loaded = _load(name)
        if isinstance(loaded, str):
            pytest.skip(loaded)
        return loaded

    return get
