"""`envgym serve-retriever` serves a file until it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("bm25s")

from envgym.errors import ToolInfraFailure
from envgym.retrieval.http_client import HttpRetriever

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_served_file_is_searched_over_http(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text(json.dumps({"id": "nile", "contents": '"Nile"\nThe longest river.'}) + "\n")
    words = [sys.executable, "-m", "envgym", "serve-retriever", str(path), "--port", "0"]
    env = {**os.environ, "ENVGYM_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline().split()
            assert told[:2] == [str(path), "at"]
            client = HttpRetriever(told[2].rstrip(";"))
            (hit,) = client.search("longest river", 3)
            assert (hit.document.title, hit.document.text) == ("Nile", "The longest river.")
            client.close()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.usefixtures("heeds_interrupts")
def test_where_others_reach_the_server_a_token_is_made_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wiki.jsonl").write_text('{"id": "nile", "text": "A river."}')
    words = [sys.executable, "-m", "envgym", "serve-retriever", str(tmp_path / "wiki.jsonl"), "--port", "0"]
    env = {**os.environ, "ENVGYM_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen([*words, "--host", "0.0.0.0"], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            name, _, token = process.stdout.readline().removeprefix("Clients need ").strip().partition("=")
            url = process.stdout.readline().split()[2].rstrip(";").replace("0.0.0.0", "127.0.0.1")
            with pytest.raises(ToolInfraFailure, match="status 401"):
                HttpRetriever(url).search("river", 3)
            monkeypatch.setenv(name, token)
            assert HttpRetriever(url).search("river", 3)[0].document.id == "nile"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_what_cannot_be_served_is_refused_in_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    code, _, said = command("serve-retriever", tmp_path / "none.jsonl")
    assert code == 2
    assert said.startswith("envgym: corpus must be a JSONL file, got ")
    code, _, said = command("serve-retriever", "math/arithmetic-v0")
    assert (code, said.partition(", got")[0]) == (2, "envgym: math/arithmetic-v0 must have pages to search")
    (tmp_path / "wiki.jsonl").write_text('{"id": "nile", "text": "A river."}')
    code, _, said = command("serve-retriever", tmp_path / "wiki.jsonl", "--index", "dense")
    assert (code, said.partition(";")[0]) == (2, "envgym: --model must be given, got none (--index dense)")
