"""Cosines of a real sentence-transformers model, whose vectors are known."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")
pytest.importorskip("sentence_transformers")

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from envgym.errors import InvalidInput
from envgym.retrieval import Bm25, Corpus
from envgym.retrieval.base import BadQuery, Hybrid
from envgym.retrieval.dense import Dense

pytestmark = pytest.mark.slow

DEEP, RIVER, AFRICA = np.eye(3, dtype=np.float32)
VECTORS = {"deepest": DEEP, "deep": DEEP, "abyss": DEEP, "river": RIVER, "stream": RIVER, "africa": AFRICA}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model: a text is the mean of its words' vectors, words that are not listed are 0."""
    words = ["[UNK]", *VECTORS]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.stack([np.zeros(3, dtype=np.float32), *VECTORS.values()])
    folder = tmp_path_factory.mktemp("model")
    embedding = StaticEmbedding(tokenizer, embedding_weights=weights)
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder), create_model_card=False)
    return folder


def test_documents_are_found_by_meaning_at_their_cosine_and_in_their_order(lakes: Corpus, model: Path) -> None:
    # baikal and geneva are deep alone; the Nile is a river in Africa: (0, 1, 1) / sqrt 2.
    dense = Dense(lakes, model, device="cpu")
    assert [(hit.document.id, round(hit.score, 6)) for hit in dense.search("abyss", 2)] == [
        ("baikal", 1),
        ("geneva", 1),
    ]
    hits = dense.search("stream", 4)
    assert hits[0].document.id == "nile"
    assert [hit.score for hit in hits] == pytest.approx([math.sqrt(0.5), 0, 0, 0], abs=1e-6)
    assert dense.find("chad") == lakes[1]
    with pytest.raises(BadQuery):
        dense.search("", 1)


def test_vectors_are_made_once_per_model_and_travel_as_a_path(lakes: Corpus, model: Path) -> None:
    dense = Dense(lakes, model, device="cpu")
    (folder,) = lakes.folder.glob("dense-*")
    before = (folder / "flat.faiss").stat().st_mtime_ns
    twin = pickle.loads(pickle.dumps(dense))
    assert (folder / "flat.faiss").stat().st_mtime_ns == before
    assert twin.search("stream", 3) == dense.search("stream", 3)


def test_a_hybrid_finds_what_either_finds(lakes: Corpus, model: Path) -> None:
    pytest.importorskip("bm25s")
    fused = Hybrid(Bm25(lakes), Dense(lakes, model, device="cpu"))
    found = [hit.document.id for hit in fused.search("stream of Chad", 2)]
    assert found == ["chad", "nile"]  # by the word, by the meaning
    assert fused.blocking


def test_a_model_that_cannot_be_loaded_is_named(lakes: Corpus, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="model must be loadable"):
        Dense(lakes, tmp_path / "empty", device="cpu")
