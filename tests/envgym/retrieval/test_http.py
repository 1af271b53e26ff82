"""Client and server, both real, on the loopback; a server that is ill is infrastructure, never the policy's fault."""

import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import httpx
import pytest

pytest.importorskip("bm25s")

from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.retrieval import BadQuery, Bm25, Cached, Corpus, Document, Hit, server
from envgym.retrieval.http_client import HttpRetriever
from envgym.retrieval.server import LIMITS, MAX_BATCH, make_server
from envgym.runtime.cache import size_of
from tests.support.http_server import http_thread

Reply = Callable[[int, str], tuple[int, str]]
"""(number of the request, path) -> status, body."""


FOUND = (Hit(document=Document(id="a", title="a", text="x"), score=1.0),)


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def scripted(reply: Reply) -> Iterator[str]:
    asked = iter(range(1_000))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = reply(next(asked), self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


@pytest.fixture
def url(lakes: Corpus) -> Iterator[str]:
    with http_thread(make_server(Bm25(lakes), name="bm25")) as served:
        yield served.url


def result(*ids: str) -> str:
    return json.dumps(
        {"result": [[{"document": {"id": name, "contents": f'"{name}"\nx'}, "score": 1} for name in ids]]}
    )


def test_client_finds_what_the_index_finds(url: str, lakes: Corpus) -> None:
    index, client = Bm25(lakes), HttpRetriever(f"{url}/retrieve")
    assert client.search("deep lake", 3) == index.search("deep lake", 3)
    assert client.search("zebra", 3) == []
    assert (client.find("nile"), client.find("none")) == (lakes[3], None)
    assert pickle.loads(pickle.dumps(client)).search("river", 1) == index.search("river", 1)
    client.close()
    assert client.search("river", 1) == index.search("river", 1)


def test_server_answers_batches_as_search_r1_asks_them(url: str) -> None:
    plain = httpx.post(f"{url}/retrieve", json={"queries": ["river", "alps"], "topk": 1}).json()
    assert plain == {
        "result": [
            [{"id": "nile", "contents": '"Nile"\nA river in Africa.'}],
            [{"id": "geneva", "contents": '"Lake Geneva"\nA deep lake in the Alps, north of Évian.'}],
        ]
    }
    scored = httpx.post(f"{url}/retrieve", json={"queries": ["lake"], "return_scores": True}).json()["result"][0]
    assert len(scored) == 3
    assert [sorted(row) for row in scored] == [["document", "score"]] * 3
    assert httpx.get(f"{url}/health").json() == {"status": "ok", "retriever": "bm25"}


@pytest.mark.parametrize(
    "path, content, status, said",
    [
        ("/retrieve", b"{", 400, "body must be JSON"),
        ("/retrieve", b"[]", 400, "body must be a JSON object"),
        ("/retrieve", b"[" * 100_000, 400, "body must be JSON"),
        ("/retrieve", b"{}", 400, "queries must be a list"),
        ("/retrieve", b'{"queries": [1]}', 400, "queries must be a list"),
        ("/retrieve", json.dumps({"queries": ["a"] * (MAX_BATCH + 1)}).encode(), 400, "queries must be a list"),
        ("/retrieve", b'{"queries": [""]}', 400, "query must hold a word"),
        (
            "/retrieve",
            json.dumps({"queries": ["a" * 100_000]}).encode(),
            400,
            "query must have at most 1000 characters",
        ),
        ("/retrieve", b'{"queries": ["lake"], "topk": "3"}', 400, "topk must be a whole number"),
        ("/retrieve", b'{"queries": ["lake"], "topk": 1000}', 400, "number of hits must be 1 to 100"),
        ("/retrieve", b" " * (LIMITS.body_bytes + 1), 413, "body must have at most 2097152 bytes"),
        ("/documents", b'{"ids": "nile"}', 400, "ids must be a list"),
        ("/search", b"{}", 404, "path must be one of /retrieve, /documents"),
    ],
)
def test_a_bad_request_gets_one_sentence(url: str, path: str, content: bytes, status: int, said: str) -> None:
    response = httpx.post(url + path, content=content)
    assert (response.status_code, sorted(response.json())) == (status, ["detail"])
    assert response.json()["detail"].startswith(said)
    assert "\n" not in response.json()["detail"]


def test_a_reply_of_too_many_characters_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REPLY_CHARS", 60)  # the Nile's page has 26, that of Lake Geneva 58
    answers = [httpx.post(f"{url}/retrieve", json={"queries": ["river"] * number, "topk": 1}) for number in (2, 3)]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert answers[1].json()["detail"].startswith("reply must have at most 60 characters, got more (/retrieve)")
    found = [httpx.post(f"{url}/documents", json={"ids": ["nile", "none"] * number}) for number in (2, 3)]
    assert [answer.status_code for answer in found] == [200, 400]


def test_a_client_sends_the_token_of_its_environment(lakes: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_thread(make_server(Bm25(lakes), name="bm25", token="secret")) as served:
        address = served.url
        with pytest.raises(ToolInfraFailure, match=r"status 401.*token must be the server's, got none"):
            HttpRetriever(address).search("river", 1)
        monkeypatch.setenv("ENVGYM_RETRIEVER_TOKEN", "secret")
        client = HttpRetriever(address)
        assert client.search("river", 1)[0].document.id == "nile"
        assert b"secret" not in pickle.dumps(client)


def test_a_busy_server_is_asked_again() -> None:
    with scripted(lambda number, path: (503, "busy") if number < 2 else (200, result("a", "b", "c"))) as address:
        assert [hit.document.id for hit in HttpRetriever(address, retries=2).search("x", 2)] == ["a", "b"]


@pytest.mark.parametrize(
    "reply, said",
    [
        (lambda number, path: (503, "busy"), "status 503"),
        (lambda number, path: (422, "no such field"), "status 422: no such field"),
        (lambda number, path: (200, "<html>"), "reply must be JSON, got <html>"),
        (lambda number, path: (200, "[" * 100_000), "reply must be JSON"),
        (lambda number, path: (200, '{"result": []}'), "reply must hold one list of results"),
        (lambda number, path: (200, '{"result": [[{"id": "a"}]]}'), "document must have a text"),
        (lambda number, path: (200, '{"result": [["text"]]}'), "document must have a text"),
    ],
)
def test_a_server_that_is_ill_is_an_infrastructure_failure(reply: Reply, said: str) -> None:
    with scripted(reply) as address, pytest.raises(ToolInfraFailure, match=re.escape(said)):
        HttpRetriever(address, retries=1).search("x", 2)


def test_a_server_that_hangs_or_is_away_costs_no_more_than_the_time_limit() -> None:
    released = Event()

    def hang(number: int, path: str) -> tuple[int, str]:
        released.wait(600)
        return 200, result("a")

    with scripted(hang) as address:
        with pytest.raises(ToolInfraFailure, match=r"retrieval server must answer, got nothing within 0\.2 s"):
            HttpRetriever(address, timeout_s=0.2, retries=5).search("x", 1)
        released.set()
    with pytest.raises(ToolInfraFailure, match="ConnectError"):  # the port is free again
        HttpRetriever(address, timeout_s=5, retries=1).search("x", 1)


def test_bad_queries_are_refused_before_anything_is_sent() -> None:
    client = HttpRetriever("http://127.0.0.1:9")
    for query in ("", "a" * 100_000):
        with pytest.raises(BadQuery):
            client.search(query, 3)


def test_a_server_without_documents_finds_none_and_bare_documents_score_by_place() -> None:
    bare = json.dumps({"result": [[{"id": 1, "contents": "T\nx"}, {"id": 2, "contents": "U\ny"}]]})
    with scripted(lambda number, path: (200, bare) if path == "/retrieve" else (404, "")) as address:
        client = HttpRetriever(address)
        assert client.find("1") is client.find("1") is None
        assert [(hit.document.id, hit.score) for hit in client.search("x", 5)] == [("1", 1.0), ("2", 0.5)]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"url": "ftp://x"}, "url must start with http"),
        ({"url": "http://x", "timeout_s": 0}, "must be positive, got (0, 3)"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, str | int], said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        HttpRetriever(**settings)  # type: ignore[arg-type]  # what is refused


def test_an_identical_query_is_answered_from_memory_and_a_failure_is_not() -> None:
    states = iter([(422, "ill"), (200, result("a")), (200, result("b")), (200, result("c"))])
    with scripted(lambda number, path: next(states)) as address:
        cached = Cached(HttpRetriever(address), max_bytes=size_of((("x", 1), FOUND)))
        with pytest.raises(ToolInfraFailure):
            cached.search("x", 1)
        seen = [cached.search(query, 1)[0].document.id for query in ("x", "x", "y", "y", "x")]
    assert seen == ["a", "a", "b", "b", "c"]
    assert cached.num_asked == 3
    assert (cached.blocking, pickle.loads(pickle.dumps(cached)).max_bytes) == (True, cached.max_bytes)
