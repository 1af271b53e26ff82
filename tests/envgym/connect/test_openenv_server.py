"""The OpenEnv server: equal to local play, every bad frame answered, sessions bounded, and every env closed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from threading import Event
from typing import ClassVar

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from envgym import Action, Env, Reply, Task
from envgym.connect.openenv_server import OpenEnvServer, _Calls
from envgym.errors import InvalidInput
from envgym.serving.sessions import SessionLimits
from envgym.serving.templates import EnvTemplate, Templates
from envgym.tools import Tool, tools_of
from tests.support.env_server import BREAKABLE, COUNTER, SLOW_COUNTER, Counter, SecretTasks, wait_until
from tests.support.openenv import Client, client_of, error_of, openenv_server, oracle_episode, step_data

HERE = "tests.envgym.connect.test_openenv_server"
SIX = (
    "puzzles/guess_number-v0",
    "math/arithmetic-v0",
    "puzzles/frozen_lake-v0",
    "tools/office-v0",
    "puzzles/mastermind-v0",
    "puzzles/sudoku-v0",
)


class Reserved(Counter):
    """Has a tool whose name the protocol reserves."""

    def toolset(self) -> Mapping[str, Tool]:
        return tools_of(state)


def state() -> str:
    """Return nothing."""
    return ""


class Stuck(Env[None]):
    """Waits until the test lets it go on."""

    tasks = SecretTasks()
    blocking = True
    let_go: ClassVar[Event] = Event()

    def begin(self, task: Task) -> str:
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.let_go.wait(60)
        return Reply()


@pytest.fixture(scope="module")
def server() -> Iterator[OpenEnvServer]:
    before = set(Counter.open_envs)  # of other tests of this process
    with openenv_server(COUNTER, SLOW_COUNTER) as running:
        yield running
    assert Counter.open_envs <= before


@pytest.fixture
def client(server: OpenEnvServer) -> Iterator[Client]:
    with client_of(server) as connected:
        yield connected


def test_six_envs_give_the_rewards_and_observations_of_local_play() -> None:
    with openenv_server(*SIX) as server:
        for number, env_id in enumerate(SIX):
            with client_of(server, "/ws" if number == 0 else f"/{env_id}/ws") as client:
                for seed in (0, 1):
                    _, *turns = expected = oracle_episode(env_id, seed)
                    first = client.observe("reset", {"seed": seed})
                    assert (first["observation"]["text"], first["done"]) == (expected[0][1], False)
                    for action, shown, reward, done in turns:
                        data = client.observe("step", step_data(action))
                        assert (data["observation"]["text"], data["reward"], data["done"]) == (shown, reward, done)


def test_a_task_is_chosen_by_split_and_index_and_its_answer_stays_here(client: Client) -> None:
    first = client.ask("reset", {"split": "test", "index": 2, "seed": 5, "episode_id": "mine"})
    assert "the-hidden-answer" not in json.dumps(first)
    assert first["data"]["observation"]["task_id"] == "test/2"
    assert client.observe("step", {"text": "go"})["reward"] == 0.5
    state = client.ask("state")
    assert state == {
        "type": "state",
        "data": {
            "episode_id": "mine",
            "step_count": 1,
            "env_id": COUNTER,
            "task_id": "test/2",
            "split": "test",
            "ending": None,
            "total_reward": 0.5,
        },
    }


@pytest.mark.parametrize("path", ["/ws", f"/{SLOW_COUNTER}/ws"])
def test_bad_frames_leave_the_session_as_it_was(server: OpenEnvServer, path: str) -> None:
    with client_of(server, path) as client:
        assert client.ask("state")["data"]["step_count"] == 0
        assert client.refuse("step", {"text": "early"})[0] == "EXECUTION_ERROR"
        client.observe("reset", {"seed": 0})
        assert client.observe("step", {"text": "go"})["observation"]["text"] == "turn 1"
        assert error_of(client.send("{"))[0] == "INVALID_JSON"
        assert error_of(client.send(b"{}"))[0] == "INVALID_JSON"
        assert client.refuse("fly")[0] == "UNKNOWN_TYPE"
        assert client.refuse("step", {"text": "go", "temperature": 1})[0] == "VALIDATION_ERROR"
        assert client.refuse("step", {"text": 5})[0] == "VALIDATION_ERROR"
        code, message = client.refuse("reset", {"index": 99})
        assert (code, "be one of 3, got 99" in message) == ("VALIDATION_ERROR", True)
        assert client.refuse("step", {"text": "go"})[0] == "EXECUTION_ERROR"  # that reset ended the episode
        client.observe("reset", {"seed": 0})
        long = client.observe("step", {"text": "x" * 2_000_000})
        assert "2000000 characters; at most 200000" in long["observation"]["text"]
        assert client.observe("step", {"text": "end"})["done"]
        code, message = client.refuse("step", {"text": "again"})
        assert (code, "The episode is over: TERMINATED" in message) == ("EXECUTION_ERROR", True)
        client.observe("reset", {"seed": 0})
        assert client.observe("step", {"text": "go"})["observation"]["text"] == "turn 1"


def test_an_invalid_reward_is_an_error_and_the_end_of_the_session_never_a_number(client: Client) -> None:
    client.observe("reset", {"seed": 0})
    code, message = client.refuse("step", {"text": "fail"})
    assert code == "EXECUTION_ERROR"
    assert "ERROR_TOOL_INFRA" in message
    assert "the disk is full" in message
    with pytest.raises(ConnectionClosed):
        client.read()


def test_an_env_that_cannot_be_made_is_a_factory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with openenv_server(BREAKABLE) as server:
        monkeypatch.setattr("tests.support.env_server.Breakable.__init__", _broken)
        with client_of(server) as client:
            code, message = error_of(client.read())
        assert (code, "ZeroDivisionError" in message) == ("FACTORY_ERROR", True)


def _broken(self: object, **_: object) -> None:
    raise ZeroDivisionError("broken")


def test_sessions_are_bounded_and_one_that_ends_makes_room() -> None:
    with openenv_server(COUNTER, limits=SessionLimits(sessions=2)) as server:
        with client_of(server) as first, client_of(server) as second:
            first.observe("reset")
            second.observe("reset")
            with client_of(server) as third:
                code, message = error_of(third.read())
                assert (code, "2 sessions free" in message) == ("CAPACITY_REACHED", True)
            first.connection.send('{"type": "close"}')
            wait_until(lambda: server.num_sessions == 1)
            with client_of(server) as fourth:
                assert fourth.observe("reset")["done"] is False
        wait_until(lambda: server.num_sessions == 0)


def test_fifty_sessions_are_held_at_once() -> None:
    with openenv_server(COUNTER) as server, ExitStack() as stack:
        clients = [stack.enter_context(client_of(server)) for _ in range(50)]
        for client in clients:
            client.observe("reset", {"seed": 0})
        for turn in (1, 2):
            for client in clients:
                assert client.observe("step", {"text": "go"})["observation"]["text"] == f"turn {turn}"
        assert server.num_sessions == 50


def test_a_call_that_hangs_and_a_session_that_is_silent_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[_Calls] = []

    class KeptCalls(_Calls):
        def __init__(self, template: EnvTemplate, call_s: float) -> None:
            super().__init__(template, call_s)
            calls.append(self)

    monkeypatch.setattr("envgym.connect.openenv_server._Calls", KeptCalls)
    Stuck.let_go.clear()
    with openenv_server(f"{HERE}:Stuck") as server, client_of(server) as client:
        client.observe("reset")
        (call_of_session,) = calls
        call_of_session._call_s = 0.2  # which would also bound make and reset
        code, message = client.refuse("step", {"text": "go"})
        assert (code, "take at most 0.2 s" in message) == ("EXECUTION_ERROR", True)
        Stuck.let_go.set()
    with openenv_server(COUNTER, limits=SessionLimits(idle_s=0.2)) as server, client_of(server) as client:
        code, message = error_of(client.read())
        assert (code, "be called every 0.2 s" in message) == ("SESSION_ERROR", True)


class Hanging(Stuck):
    """Waits in its reset."""

    num_closed: ClassVar[int] = 0

    def begin(self, task: Task) -> str:
        self.let_go.wait(60)
        return task.prompt

    def close(self) -> None:
        Hanging.num_closed += 1


def test_http_requests_that_hang_leave_the_others_answered() -> None:
    Stuck.let_go.clear()
    with openenv_server(f"{HERE}:Hanging") as server, httpx.Client(base_url=server.url, trust_env=False) as http:
        Hanging.num_closed, usual = 0, server.limits
        server.limits = usual._replace(call_s=0.01)
        for _ in range(6):
            answer = http.post("/reset", json={"seed": 0}, timeout=60)
            assert answer.status_code == 503
            assert answer.json()["detail"].startswith("answer must take at most 0.01 s, got more (/reset); send")
        server.limits = usual
        tasks = http.post(f"/{HERE}:Hanging/num_tasks", json={"split": "train"}, timeout=60)
        assert tasks.json() == {"num_tasks": 3}
        Stuck.let_go.set()
        wait_until(lambda: Hanging.num_closed == 6)


def test_tools_are_listed_and_called_in_the_forms_of_mcp() -> None:
    guess = "puzzles/guess_number-v0"
    with openenv_server(guess) as server, client_of(server) as client:
        (listed,) = client.observe("step", {"type": "list_tools"})["observation"]["tools"]
        assert (listed["name"], listed["input_schema"]["required"]) == ("guess", ["number"])
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        (listed,) = client.ask("mcp", rpc)["data"]["result"]["tools"]
        assert (listed["name"], listed["inputSchema"]["required"]) == ("guess", ["number"])
        client.observe("reset", {"seed": 3})
        call = {"type": "call_tool", "tool_name": "guess", "arguments": {"number": -1}}
        observation = client.observe("step", call)["observation"]
        assert (observation["tool_name"], observation["error"]) == ("guess", None)
        assert observation["result"] == observation["text"]
        call = {"type": "call_tool", "tool_name": "guess", "arguments": {"number": "many"}}
        observation = client.observe("step", call)["observation"]
        assert (observation["result"], observation["tool_errors"]) == (None, 1)
        assert "number" in observation["error"]["message"]
        params = {"name": "guess", "arguments": {"number": -1}}
        result = client.ask("mcp", {**rpc, "method": "tools/call", "params": params})["data"]["result"]
        assert (result["isError"], result["_meta"]) == (False, {"reward": 0.0, "done": False})
        refused = client.ask("mcp", {**rpc, "method": "tools/call", "params": {"name": 1}})["data"]["error"]
        assert refused["code"] == -32602
        assert client.ask("mcp", {**rpc, "method": "resources/list"})["data"]["error"]["code"] == -32601
        assert client.ask("state")["data"]["step_count"] == 3


def test_routes_describe_the_envs_and_their_tasks(server: OpenEnvServer) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        assert http.get("/health").json() == {"status": "healthy"}
        assert http.get("/list_environments").json() == [COUNTER, SLOW_COUNTER]
        assert http.get("/metadata").json()["name"] == COUNTER
        assert http.get(f"/{SLOW_COUNTER}/metadata").json()["name"] == SLOW_COUNTER
        schema = http.get("/schema").json()
        assert (schema["action"]["required"], sorted(schema)) == (
            ["text"],
            ["action", "observation", "reset_observation", "state"],
        )
        assert http.get("/state").json() == {"episode_id": None, "step_count": 0, "env_id": COUNTER}
        first = http.post("/reset", json={"seed": 1, "split": "test", "index": 0}).json()
        assert (first["observation"]["task_id"], first["reward"], first["done"]) == ("test/0", None, False)
        assert http.post("/reset", json={"seed": "x"}).status_code == 400
        assert http.post("/reset", content="{").status_code == 400
        assert http.post("/reset", content=b" " * (2 << 20)).status_code == 400
        assert http.post("/step", json={"action": {"text": "a"}}).status_code == 400
        assert http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"] == {
            "tools": []
        }
        for api in (f"/{COUNTER}", f"/{SLOW_COUNTER}", f"/{SLOW_COUNTER}/{SLOW_COUNTER}"):
            assert [split["name"] for split in http.get(f"{api}/splits").json()] == ["train", "test"]
        api = f"/{COUNTER}"
        train = {"split": "train"}
        assert http.post(f"{api}/num_tasks", json=train).json() == {"num_tasks": 3}
        assert http.post(f"{api}/task", json={**train, "index": 1}).json() == {
            "task": {"id": "train/1", "prompt": "Say 1.", "split": "train", "index": 1}
        }
        assert len(http.post(f"{api}/tasks", json=train).json()["tasks"]) == 3
        ids = [item["id"] for item in http.post(f"{api}/task_range", json={**train, "start": -2}).json()["tasks"]]
        assert ids == ["train/1", "train/2"]
        assert http.post(f"{api}/task", json={**train, "index": 3}).status_code == 400
        assert http.post(f"{api}/num_tasks", json={"split": "dev"}).status_code == 400
        assert http.post("/other/num_tasks", json=train).status_code == 404


def test_tasks_without_end_have_no_number_but_ranges() -> None:
    guess = "puzzles/guess_number-v0"
    with openenv_server(guess) as server, httpx.Client(base_url=f"{server.url}/{guess}", trust_env=False) as http:
        refused = http.post("/num_tasks", json={"split": "train"})
        assert (refused.status_code, "tasks without end" in refused.json()["detail"]) == (501, True)
        assert http.post("/tasks", json={"split": "train"}).status_code == 501
        page = http.post("/task_range", json={"split": "train", "start": 7, "stop": 9}).json()["tasks"]
        assert [item["index"] for item in page] == [7, 8]
        refused = http.post("/task_range", json={"split": "train", "start": 7, "stop": 10**30})
        assert (refused.status_code, "be at most 10000, got 99999" in refused.json()["detail"]) == (400, True)


def test_other_origins_hosts_and_clients_without_the_token_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with openenv_server(COUNTER, token="secret") as server:
        good = {"Authorization": "Bearer secret"}
        with client_of(server, **good) as client:
            assert client.observe("reset")["done"] is False
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer other"}, 401),
            ({**good, "Origin": "http://evil.example"}, 403),
            ({**good, "Host": "evil.example"}, 403),
        ):
            if "Host" not in headers:
                with pytest.raises(InvalidStatus) as refused, client_of(server, **headers):
                    pass
                assert refused.value.response.status_code == status
            assert httpx.get(f"{server.url}/schema", headers=headers, trust_env=False).status_code == status
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_servers_that_cannot_be_are_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"Reserved must have no tool named close, reset, state, step, got state"):
        OpenEnvServer(Templates([f"{HERE}:Reserved"], {}))
    with pytest.raises(InvalidInput, match="known"):
        OpenEnvServer(Templates(["math/no_such-v0"], {}))
