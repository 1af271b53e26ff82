"""Small corpora, and a cache of their own for each test."""

from pathlib import Path

import pytest

from envgym.retrieval.base import Document
from envgym.retrieval.corpus import Corpus, corpus_at


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def lakes() -> Corpus:
    return corpus_at(
        "lakes",
        [
            Document(id="baikal", title="Lake Baikal", text="The deepest lake of the world: 1,642 m."),
            Document(id="chad", title="Lake Chad", text="A shallow lake in Africa."),
            Document(id="geneva", title="Lake Geneva", text="A deep lake in the Alps, north of Évian."),
            Document(id="nile", title="Nile", text="A river in Africa."),
        ],
    )
