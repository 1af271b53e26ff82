"""`envgym serve-retriever` serves a file until it is interrupted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("bm25s")

from envgym.errors import ToolInfraFailure
from envgym.retrieval.http_client import HttpRetriever
from tests.support.retrievers import serve_retriever, served_url

Command = Callable[..., tuple[int, str, str]]


def test_a_served_file_is_searched_over_http(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text(json.dumps({"id": "nile", "contents": '"Nile"\nThe longest river.'}) + "\n")
    with serve_retriever(str(path), cache=tmp_path / "cache") as printed:
        told = printed.readline()
        assert told.startswith(f"{path} at ")
        client = HttpRetriever(served_url(told))
        (hit,) = client.search("longest river", 3)
        assert (hit.document.title, hit.document.text) == ("Nile", "The longest river.")
        client.close()


def test_if_others_reach_the_server_a_token_is_made_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wiki.jsonl").write_text('{"id": "nile", "text": "A river."}')
    path = tmp_path / "wiki.jsonl"
    with serve_retriever(str(path), "--host", "0.0.0.0", cache=tmp_path / "cache") as printed:
        name, _, token = printed.readline().removeprefix("Clients need ").strip().partition("=")
        url = served_url(printed.readline()).replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(ToolInfraFailure, match="status 401"):
            HttpRetriever(url).search("river", 3)
        monkeypatch.setenv(name, token)
        assert HttpRetriever(url).search("river", 3)[0].document.id == "nile"


def test_unservable_corpus_is_one_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    code, _, said = command("serve-retriever", tmp_path / "none.jsonl")
    assert code == 2
    assert said.startswith("envgym: corpus must be a JSONL file, got ")
    code, _, said = command("serve-retriever", "math/arithmetic-v0")
    assert (code, said.partition(", got")[0]) == (2, "envgym: math/arithmetic-v0 must have pages to search")
    (tmp_path / "wiki.jsonl").write_text('{"id": "nile", "text": "A river."}')
    code, _, said = command("serve-retriever", tmp_path / "wiki.jsonl", "--index", "dense")
    assert (code, said.partition(";")[0]) == (2, "envgym: --model must be given, got none (--index dense)")
