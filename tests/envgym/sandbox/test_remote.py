"""Machines over HTTP: the same requests and errors as those of the back-end behind them, leases, and what is lost."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from envgym.cli.main import main
from envgym.errors import EnvgymError, ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure
from envgym.runtime.event_loop import LoopThread
from envgym.sandbox import make_machines, make_sandbox
from envgym.sandbox.machines import CommandResult, Machine, MachineBackend, MachineShell, MachineSpec
from envgym.sandbox.machines.server import MachineLimits, MachineServer
from envgym.sandbox.machines.wire import PATHS, TOKEN_VARIABLE
from envgym.sandbox.records import RunEnding
from envgym.sandbox.remote import RemoteSandbox
from tests.envgym.sandbox.conftest import SMALL
from tests.envgym.sandbox.file_machines import WAIT_S, FileMachine, FileMachines

SPEC = MachineSpec(image="image", env={"A": "1"}, user="1000", network=True)


async def ended(server: MachineServer) -> None:
    assert await server.close() == 0


@contextmanager
def serving(
    back_end: MachineBackend, *, token: str | None = None, machines: int = 4, lease_s: float = 60.0
) -> Iterator[str]:
    server = MachineServer(back_end, token=token, limits=MachineLimits(machines, lease_s))
    thread = LoopThread("machine-server")
    url = thread.run(server.listen("127.0.0.1", 0))
    try:
        yield url
    finally:
        thread.run(ended(server))  # before tasks that accept connections are cancelled
        thread.close(asyncio.sleep(0))


@pytest.fixture
def back_end() -> FileMachines:
    return FileMachines()


@pytest.fixture
def remote(back_end: FileMachines) -> Iterator[RemoteSandbox]:
    with serving(back_end) as url, closing(RemoteSandbox(url)) as sandbox:
        yield sandbox


def post(url: str, path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT_S)
    with closing(connection):
        connection.request("POST", path, body, dict(headers))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


# ---- requests


def test_a_machine_is_asked_with_the_same_words_and_answers_with_the_same(
    back_end: FileMachines, remote: RemoteSandbox, tmp_path: Path
) -> None:
    machine = remote.start(SPEC)
    assert back_end.specs == [SPEC]
    done = machine.run(["a", "ü"], timeout_s=2.5, output=9, workdir="/w", env={"B": "\n"}, user="u:g", stdin=b"\0\xff")
    assert done == CommandResult(exit_code=3, output=b"\0\xff", ending=RunEnding.EXITED, seconds=0.5, dropped=7)
    assert MachineShell(machine, user="me").run("text", 1.0).is_shell_lost
    first, second = back_end.machines[0].commands
    assert (first["command"], first["stdin"], first["shell"]) == (["a", "ü"], b"\0\xff", None)
    assert (first["timeout_s"], first["output"], first["workdir"]) == (2.5, 9, "/w")
    assert (first["env"], first["user"]) == ({"B": "\n"}, "u:g")
    assert (second["command"], second["user"], second["shell"] is not None) == ("text", "me", True)
    (tmp_path / "run").write_bytes(b"\xff")
    (tmp_path / "run").chmod(0o755)
    machine.put({"a": b"\0"}, "/d", mode=0o600, owner="1")
    machine.put_folder(tmp_path, "/e")
    assert machine.get("/d") == {"/d/a 600 1": b"\0", "/e/run 755 root": b"\xff"}
    machine.end_processes()
    copy = machine.fork()
    copy.put({}, "/d", is_fresh=True)
    assert (copy.get("/d"), len(machine.get("/d"))) == ({}, 2)
    machine.close()
    machine.close()
    copy.close()
    assert all(item.is_closed.wait(WAIT_S) for item in back_end.machines)
    with pytest.raises(ToolInfraFailure, match=r"^machine must run, got one that is closed"):
        machine.run("true", timeout_s=1.0)


def test_a_context_is_sent_with_its_permissions(back_end: FileMachines, remote: RemoteSandbox, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"\0")
    (tmp_path / "Dockerfile").write_text("FROM a")
    (tmp_path / "Dockerfile").chmod(0o700)
    assert remote.build(tmp_path, bases={"a": "b"}, network=True, timeout_s=5) == "Dockerfile {'a': 'b'} True 5"
    assert back_end.contexts == [{"Dockerfile": (b"FROM a", 0o755), "in/a": (b"\0", 0o644)}]


@pytest.mark.parametrize(
    "error, kind, text",
    [
        (InvalidInput("a rule"), InvalidInput, "a rule"),
        (ToolError("no space"), ToolError, "no space"),
        (ForkUnsupported("no"), ForkUnsupported, "no"),
        (ToolInfraFailure("gone"), ToolInfraFailure, "gone"),
        (RuntimeError("a defect"), ToolInfraFailure, "RuntimeError: a defect"),
    ],
)
def test_errors_are_those_of_the_back_end(
    back_end: FileMachines, remote: RemoteSandbox, error: Exception, kind: type[EnvgymError], text: str
) -> None:
    back_end.errors["fail"] = error
    with closing(remote.start(SPEC)) as machine:
        with pytest.raises(kind) as failure:
            machine.run("fail", timeout_s=1.0)
        assert (type(failure.value), str(failure.value)) == (kind, text)
        assert machine.run("on", timeout_s=1.0).exit_code == 3


def test_an_image_that_is_not_there_is_the_callers_fault_and_holds_no_place(back_end: FileMachines) -> None:
    with serving(back_end, machines=1) as url, closing(RemoteSandbox(url)) as remote:
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"^image must be here, got none"):
                remote.start(replace(SPEC, image="none"))
        remote.start(SPEC).close()


# ---- transport


def test_a_server_that_is_not_there_or_another_is_an_infra_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.sandbox.remote._RECONNECT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    remote = RemoteSandbox(f"http://127.0.0.1:{port}")
    assert "machine server must answer" in str(remote.why_unavailable())
    for url in ("http://127.0.0.1", "https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:x"):
        with pytest.raises(InvalidInput, match=r"^machine server must have an address with a port"):
            RemoteSandbox(url)


def test_the_token_is_demanded(back_end: FileMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(back_end, token="secret") as url:
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        with closing(RemoteSandbox(url)) as remote, pytest.raises(InvalidInput, match=r"^token must be the server's"):
            remote.start(SPEC)
        monkeypatch.setenv(TOKEN_VARIABLE, "secret")
        with closing(RemoteSandbox(url)) as remote:
            assert remote.why_unavailable() is None
            remote.start(SPEC).close()
    assert len(back_end.machines) == 1


def test_a_number_that_is_sent_again_gets_the_reply_that_was_given(back_end: FileMachines) -> None:
    id, spec = "0" * 32, {"image": "image"}
    with serving(back_end) as url:
        for _ in range(2):
            start = json.dumps({"machine": id, "number": 0, "spec": spec}).encode()
            assert post(url, "/v1/machines/start", start) == (200, {})
        run = {"machine": id, "number": 1, "command": "once", "timeout_s": 1.0}
        replies = [post(url, "/v1/machines/run", json.dumps(run).encode()) for _ in range(3)]
        assert replies[0] == replies[1] == replies[2]
        status, error = post(url, "/v1/machines/run", json.dumps({**run, "number": 0}).encode())
        assert (status, error["error"]["type"]) == (400, "InvalidInput")
    assert (len(back_end.machines), len(back_end.machines[0].commands)) == (1, 1)


@pytest.mark.parametrize(
    "path, body, status, text",
    [
        ("/v1/machines/nothing", b"{}", 404, "path must be one of the protocol"),
        ("/v1/machines/run", b"{", 400, "request must be a JSON object"),
        ("/v1/machines/run", b"[]", 400, "request must have the form of the protocol"),
        ("/v1/machines/run", b'{"machine": "0", "number": 1}', 400, "command"),
        ("/v1/machines/start", b'{"machine": "short", "number": 0, "spec": {"image": "a"}}', 400, "32 hexadecimal"),
        ("/v1/machines/start", b'{"machine": "0", "number": 0, "spec": {"image": ""}}', 400, "image must be a name"),
        ("/v1/machines/get", b'{"machine": "0", "number": 1, "path": "/"}', 502, "be held by the server"),
        ("/v1/machines/build", b'{"context": {"../a": ["", 420]}}', 400, "lie in the directory"),
        ("/v1/machines/build", b'{"context": {"a": ["?", 420]}}', 400, "base64"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(
    back_end: FileMachines, path: str, body: bytes, status: int, text: str
) -> None:
    with serving(back_end) as url:
        got, reply = post(url, path, body)
    assert (got, text in reply["error"]["message"]) == (status, True), reply
    assert back_end.machines == []


def test_every_path_of_the_protocol_is_in_the_page() -> None:
    page = Path("docs/sandbox.md").read_text()
    assert [path for path in PATHS if f"`{path.rpartition('/')[2]}`" not in page] == []


# ---- leases


def until(is_so: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        if is_so():
            return
        waiting.wait(0.05)
    raise AssertionError("it did not happen in time")


def test_a_client_that_is_silent_loses_its_machines_also_while_a_command_runs(back_end: FileMachines) -> None:
    with serving(back_end, lease_s=1.0) as url:
        body = {"machine": "1" * 32, "number": 0, "spec": {"image": "image"}}
        assert post(url, "/v1/machines/start", json.dumps(body).encode())[0] == 200
        run = {"machine": "1" * 32, "number": 1, "command": "wait", "timeout_s": 99.0}
        status, reply = post(url, "/v1/machines/run", json.dumps(run).encode())
        assert (status, reply["error"]["type"]) == (502, "ToolInfraFailure")
        assert back_end.machines[0].is_closed.wait(WAIT_S)


def test_a_client_that_lives_renews_its_leases(back_end: FileMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.sandbox.remote._RENEWALS", 600.0)
    server = MachineServer(back_end, limits=MachineLimits(1, 60.0))
    thread = LoopThread("machine-server")
    try:
        remote = RemoteSandbox(thread.run(server.listen("127.0.0.1", 0)))
        machine = remote.start(SPEC)
        (held,) = server._held.values()
        for _ in range(3):
            before = held.expires
            until(lambda: held.expires > before)  # noqa: B023  # called at once
        machine.close()
        until(lambda: not any(thread.name == "machine-leases" for thread in threading.enumerate()))
    finally:
        thread.run(ended(server))
        thread.close(asyncio.sleep(0))


def test_a_full_server_is_asked_again(back_end: FileMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(back_end, machines=1) as url, closing(RemoteSandbox(url)) as remote:
        first = remote.start(SPEC)
        second: list[Machine] = []
        waiting = threading.Thread(target=lambda: second.append(remote.start(SPEC)))
        waiting.start()
        first.close()
        waiting.join(WAIT_S)
        monkeypatch.setattr("envgym.sandbox.remote._BUSY_S", 0.0)
        with pytest.raises(ToolInfraFailure, match=r"^server must hold at most 1 machines"):
            second[0].fork()
        assert second[0].run("on", timeout_s=1.0).exit_code == 3
        second[0].close()
    assert len(back_end.machines) == 2


def start_body(id: str) -> bytes:
    return json.dumps({"machine": id * 32, "number": 0, "spec": {"image": "image"}}).encode()


def test_a_fork_at_a_full_server_succeeds_when_it_is_asked_again_with_room(back_end: FileMachines) -> None:
    with serving(back_end, machines=2) as url:
        for id in "ab":
            assert post(url, "/v1/machines/start", start_body(id))[0] == 200
        fork = json.dumps({"machine": "a" * 32, "number": 5, "to": "c" * 32}).encode()
        assert [post(url, "/v1/machines/fork", fork)[0] for _ in range(2)] == [503, 503]
        assert post(url, "/v1/machines/close", json.dumps({"machine": "b" * 32, "number": 1}).encode())[0] == 200
        assert [post(url, "/v1/machines/fork", fork) for _ in range(2)] == [(200, {}), (200, {})]
    assert len(back_end.machines) == 3


def test_leases_end_also_after_a_client_closes_and_a_removal_fails_meanwhile(
    back_end: FileMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_removing, is_closed = threading.Event(), threading.Event()

    def close(machine: FileMachine) -> None:
        if machine is back_end.machines[0]:
            is_removing.set()
            is_closed.wait(WAIT_S)
            raise RuntimeError("a defect")
        machine.is_closed.set()

    monkeypatch.setattr(FileMachine, "close", close)
    with serving(back_end, lease_s=1.0) as url:
        for id in "ab":
            assert post(url, "/v1/machines/start", start_body(id))[0] == 200
        assert is_removing.wait(WAIT_S)
        post(url, "/v1/machines/close", json.dumps({"machine": "b" * 32, "number": 1}).encode())
        is_closed.set()
        assert post(url, "/v1/machines/start", start_body("c"))[0] == 200
        assert back_end.machines[2].is_closed.wait(WAIT_S)


def test_a_server_that_ends_removes_all_machines(back_end: FileMachines) -> None:
    with serving(back_end) as url:
        remote = RemoteSandbox(url)
        remote.start(SPEC)
        machine = remote.start(SPEC)
    assert all(item.is_closed.is_set() for item in back_end.machines)
    machine.close()  # of a server that is gone: no error
    remote.close()


# ---- the choice, the command, and containers


@pytest.mark.parametrize(
    "words, text",
    [
        (["bwrap"], "sandbox must offer machines, got bwrap, without build"),
        (["docker", "remote:http://127.0.0.1:1"], "ENV must be one sandbox, such as docker"),
        (["docker", "--set", "a=1"], "--set must be left out"),
        (["docker", "--no-oracle"], "--no-oracle"),
    ],
)
def test_the_command_refuses_what_does_not_fit(
    words: Sequence[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--protocol", "sandbox", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, limits", [([], MachineLimits()), (["--sessions", "3", "--lease-seconds", "9"], MachineLimits(3, 9.0))]
)
def test_the_command_has_the_limits_of_machines(
    words: Sequence[str], limits: MachineLimits, back_end: FileMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[MachineLimits] = []

    async def listen(server: MachineServer, host: str, port: int) -> str:
        seen.append(server._limits)
        raise InvalidInput("seen")

    monkeypatch.setattr("envgym.sandbox.make_machines", lambda name: back_end)
    monkeypatch.setattr(MachineServer, "listen", listen)
    assert main(["serve", "--protocol", "sandbox", "docker", *words]) == 2
    assert seen == [limits]


def test_remote_is_chosen_with_its_address_and_offers_machines_only() -> None:
    assert isinstance(make_machines("remote:http://127.0.0.1:1"), RemoteSandbox)
    with pytest.raises(InvalidInput, match=r"^sandbox must offer programs, got remote:http://127.0.0.1:1, without run"):
        make_sandbox("remote:http://127.0.0.1:1")


@pytest.mark.docker
def test_containers_over_http(machines: MachineBackend) -> None:
    with serving(machines) as url, closing(RemoteSandbox(url)) as remote:
        machine = remote.start(SMALL)
        try:
            shell = MachineShell(machine)
            shell.run("x=5; echo 1 > file", 60.0)
            assert shell.run("echo $x", 60.0).output == b"5\n"
            copy = machine.fork()
            assert copy.get("/work") == {"file": b"1\n"}
            copy.close()
        finally:
            machine.close()
