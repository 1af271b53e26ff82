"""What is written is read; a folder is whole or not there."""

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.retrieval.base import Document
from envgym.retrieval.corpus import Corpus, corpus_at, open_corpus, write
from envgym.runtime.cache import build_once, cache_directory

texts = st.text(max_size=20)


@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=8, unique_by=lambda row: row[0]))
@settings(max_examples=20, deadline=None)
def test_every_document_is_found_by_number_and_by_id(rows: list[tuple[str, str, str]]) -> None:
    documents = [Document(id=identity, title=title, text=text) for identity, title, text in rows]
    folder = build_once(cache_directory() / f"drawn-{abs(hash(tuple(rows)))}", lambda work: write(documents, work))
    corpus = Corpus(folder)
    assert list(corpus) == documents
    assert [corpus.find(item.id) for item in documents] == documents
    assert corpus.find("no such id " * 3) is None
    assert pickle.loads(pickle.dumps(corpus)).find(rows[0][0]) == documents[0]


def test_a_corpus_is_written_once(lakes: Corpus) -> None:
    assert [item.id for item in corpus_at("lakes", [])] == [item.id for item in lakes]


def test_both_forms_of_jsonl_are_read_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    rows = [{"id": 7, "contents": '"Nile"\nA river.\nLong.'}, {"title": "Chad", "text": "A lake."}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert list(open_corpus(path)) == [
        Document(id="7", title="Nile", text="A river.\nLong."),
        Document(id="1", title="Chad", text="A lake."),
    ]
    path.write_text(json.dumps({"id": "new", "text": "Only this."}) + "\n")
    assert [item.id for item in open_corpus(path)] == ["new"]


@pytest.mark.parametrize(
    "content, said",
    [
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "document id must be unique, got 'a' twice (corpus)"),
        ("{", "line must be JSON, got {"),
        ('{"id": "a"}', "document must have a text"),
        ("", "corpus must hold documents, got none"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused_and_nothing_is_kept(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=re.escape(said)):
        open_corpus(path)
    assert list((cache_directory() / "corpora").iterdir()) == []


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"corpus must be a JSONL file, got .*none\.jsonl"):
        open_corpus(tmp_path / "none.jsonl")
