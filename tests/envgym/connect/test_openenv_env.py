"""Environments on an OpenEnv server: our own server gives local play; a broken one is a failure."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

import envgym
from envgym import Env
from envgym.conformance import CheckStatus, check_env_conformance
from envgym.connect.openenv_env import KEPT_S, OpenEnvEnv, _described_at
from envgym.connect.openenv_frames import TOKEN_VARIABLE
from envgym.core.turns import Ending, Invalid, Scored
from envgym.errors import EnvFailure, InvalidInput
from envgym.parsing import tool_call_action
from envgym.records import StepRecord
from envgym.serving.sessions import SessionLimits
from tests.support.env_server import COUNTER, Counter, wait_until
from tests.support.openenv import client_of, openenv_server

GUESS = "puzzles/guess_number-v0"


@pytest.fixture(autouse=True)
def fresh_descriptions() -> Iterator[None]:
    _described_at.cache_clear()  # a port may be used again
    yield
    _described_at.cache_clear()


def id_of(url: str, path: str = "") -> str:
    return f"openenv://{url.removeprefix('http://')}{path}"


def play(env: Env[Any], action: str) -> StepRecord:
    record: StepRecord = env.step(action).info["envgym"]
    return record


# ---- our own server --------------------------------------------------------------------------------------------------


def test_our_server_gives_the_episodes_of_local_play() -> None:
    ids = (GUESS, "math/arithmetic-v0", "tools/office-v0", "puzzles/frozen_lake-v0")
    with openenv_server(*ids) as server:
        for env_id in ids:
            path = "" if env_id == GUESS else f"/{env_id}"
            with closing(envgym.make(id_of(server.url, path))) as env:
                seed = 3
                # The task of a local episode is found by its number: a seed of the client is another one.
                local: Env[Any] = envgym.make(env_id)
                task = local.reset(seed=seed, options={"split": "test", "index": 4}).info["envgym"]
                first = env.reset(options={"split": "test", "index": 4}).info["envgym"]
                assert str(first.observation) == str(task.observation)
                assert first.tools == task.tools
                assert first.system_prompt == task.system_prompt
                ending = None
                while ending is None:
                    action = local.oracle()
                    here, there = play(local, action), play(env, action)
                    assert (str(there.observation), there.reward.value, there.tool_errors) == (  # type: ignore[union-attr]
                        str(here.observation),
                        here.reward.value,  # type: ignore[union-attr]
                        here.tool_errors,
                    )
                    assert there.ending == here.ending
                    ending = here.ending
                local.close()


def test_a_prompt_of_messages_is_the_same_as_in_local_play(tmp_path: Path) -> None:
    turns = [("system", "Add."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "And 2 + 2?")]
    row = {"prompt": [{"role": role, "content": text} for role, text in turns], "answer": "4"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    settings = {"data": {"train": str(tmp_path / "rows.jsonl")}, "verifier": "math", "system_prompt": "One number."}
    options = {"split": "train", "index": 0}
    with (
        openenv_server("data/file-v0", settings=settings) as server,
        closing(envgym.make("data/file-v0", **settings)) as local,
        closing(envgym.make(id_of(server.url))) as env,
        closing(envgym.make(id_of(server.url), observation="<{{ text }}>")) as written,
    ):
        here, there, template = [item.reset(seed=0, options=options).info["envgym"] for item in (local, env, written)]
        assert [message.role for message in here.observation.messages] == ["user", "assistant", "user"]
        assert there.observation.messages == here.observation.messages
        assert (there.observation, there.system_prompt) == (here.observation, here.system_prompt)
        assert template.observation == "<user: 1 + 1?\n\nassistant: 2\n\nuser: And 2 + 2?>"
        assert env.step("4").reward == local.step("4").reward == 1.0


def test_a_server_of_ours_passes_the_conformance_check() -> None:
    with openenv_server(GUESS) as server:
        checks = check_env_conformance(lambda: envgym.make(id_of(server.url), deterministic=True), num_tasks=2)
        assert [(check.name, check.detail) for check in checks if check.status is CheckStatus.FAIL] == []


def test_a_limit_of_our_server_is_a_truncation_here() -> None:
    with openenv_server(COUNTER, settings={"max_turns": 2}) as server, closing(envgym.make(id_of(server.url))) as env:
        env.reset(seed=0)
        records = [play(env, "go") for _ in range(2)]
        assert [record.ending for record in records] == [None, Ending.TRUNCATED_TURNS]
        assert [record.reward for record in records] == [Scored(value=0.5)] * 2


def test_the_seed_of_a_reset_reaches_the_server() -> None:
    with openenv_server(COUNTER) as server, closing(envgym.make(id_of(server.url))) as env:
        texts = [str(env.reset(seed=seed, options={"split": "test", "index": 1}).observation) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]


def test_refused_calls_are_advice_and_cost_no_episode() -> None:
    with openenv_server(GUESS) as server, closing(envgym.make(id_of(server.url))) as env:
        env.reset(seed=0)
        record = play(env, tool_call_action("guess", number="many"))
        assert (record.tool_errors, record.ending) == (1, None)
        assert "number" in str(record.observation)
        record = play(env, tool_call_action("gess", number=1))
        assert "Did you mean guess" in str(record.observation)


def test_an_invalid_reward_of_the_server_is_invalid_here() -> None:
    before = set(Counter.open_envs)  # of other tests of this process
    with openenv_server(COUNTER) as server, closing(envgym.make(id_of(server.url))) as env:
        assert env.unwrapped.tasks.size(envgym.Split.TEST) == 3
        env.reset(options={"split": "test", "index": 1})
        assert play(env, "go").reward == Scored(value=0.5)
        record = play(env, "fail")
        assert record.ending is Ending.ERROR_ENV
        assert isinstance(record.reward, Invalid)
        assert "the disk is full" in record.reward.reason
        env.reset(seed=0)  # in a new session
        assert play(env, "end").ending is Ending.TERMINATED
    assert Counter.open_envs <= before


def test_a_session_that_the_server_ended_meanwhile_costs_no_episode() -> None:
    with openenv_server(COUNTER) as server, closing(envgym.make(id_of(server.url))) as env:
        env.reset(seed=0)
        server.limits = server.limits._replace(idle_s=0.05)
        play(env, "go")
        wait_until(lambda: server.num_sessions == 0)  # its last frame, an error, is still unread
        server.limits = server.limits._replace(idle_s=60.0)
        env.reset(seed=0)
        assert play(env, "end").ending is Ending.TERMINATED


def test_the_description_of_a_server_is_kept_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("envgym.connect.openenv_env.monotonic", lambda: now[0])
    with openenv_server(COUNTER) as server:
        envgym.make(env_id := id_of(server.url)).close()
    envgym.make(env_id).close()
    now[0] = KEPT_S
    with pytest.raises(InvalidInput, match=r"OpenEnv server must answer, got .*start the server"):
        envgym.make(env_id)


def test_a_full_server_is_waited_for() -> None:
    with openenv_server(COUNTER, limits=SessionLimits(sessions=1)) as server:
        env = envgym.make(id_of(server.url))
        with client_of(server) as other:
            other.observe("reset")
            first: list[str] = []
            thread = threading.Thread(target=lambda: first.append(str(env.reset(seed=0).observation)))
            thread.start()
            wait_until(lambda: server.num_refused > 0)
        thread.join()
        env.close()
        assert first[0].startswith("Say ")


def test_the_token_of_the_environment_variable_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with openenv_server(COUNTER, token="secret") as server:
        with pytest.raises(InvalidInput, match=f"set {TOKEN_VARIABLE} to the server's token"):
            envgym.make(id_of(server.url))
        monkeypatch.setenv(TOKEN_VARIABLE, "secret")
        with closing(envgym.make(id_of(server.url))) as env:
            env.reset(seed=0)


# ---- servers of another kind -----------------------------------------------------------------------------------------

TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["message"],
}
Script = Callable[[ServerConnection], None]


@contextmanager
def scripted_server(script: Script, routes: dict[str, Any] | None = None) -> Iterator[str]:
    """Serve GET routes with JSON, and a script for each connection; yield the id of the env."""
    answers = {"/schema": {"action": TEXT}, **(routes or {})}

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        if request.path not in answers:
            return connection.respond(HTTPStatus.NOT_FOUND, "")
        value = answers[request.path]
        return connection.respond(HTTPStatus.OK, value if isinstance(value, str) else json.dumps(value))

    with serve(script, "127.0.0.1", 0, process_request=answer, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"openenv://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def observation(text: str = "hi", reward: object = None, done: bool = False) -> str:
    return json.dumps({"type": "observation", "data": {"observation": {"echo": text}, "reward": reward, "done": done}})


def answering(*answers: str) -> Script:
    """Return a script that answers one frame with each text, and then closes."""

    def script(connection: ServerConnection) -> None:
        for text in answers:
            connection.recv()
            connection.send(text)

    return script


@pytest.mark.parametrize(
    "last, settings, value, words",
    [
        (observation(reward=None, done=True), {}, None, "be a number"),
        (observation(reward=None, done=True), {"reward_none": 0.25}, 0.25, ""),
        (observation(reward=True, done=True), {}, 1.0, ""),
        (observation(reward=0, done=True), {}, 0.0, ""),
        (observation(reward=float("nan"), done=True), {}, None, "be a number"),
        (observation(reward=float("nan")), {}, None, "be a number"),
        ('{"type": "error", "data": {"message": "oh", "code": "EXECUTION_ERROR"}}', {}, None, "answered: oh"),
        ("<html>", {}, None, "be JSON"),
        ('{"type": "hello", "data": {}}', {}, None, "be observation"),
    ],
)
def test_a_reward_is_the_servers_number_or_invalid(last: str, settings: Any, value: float | None, words: str) -> None:
    script = answering(observation(), observation("yes"), last)
    with scripted_server(script) as env_id, closing(envgym.make(env_id, **settings)) as env:
        assert str(env.reset(seed=0).observation) == "hi"
        assert play(env, "one").reward == Scored(value=0.0)
        record = play(env, "two")
    if value is None:
        assert isinstance(record.reward, Invalid)
        assert words in record.reward.reason
        assert record.ending is Ending.ERROR_ENV
    else:
        assert (record.reward, record.ending) == (Scored(value=value), Ending.TERMINATED)


def test_a_server_that_dies_or_hangs_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def hanging(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(observation())
        connection.recv()
        let_go.wait(60)

    with scripted_server(answering(observation())) as env_id, closing(envgym.make(env_id)) as env:
        env.reset(seed=0)
        record = play(env, "one")
        assert record.ending is Ending.ERROR_ENV
        assert "must answer, got Connection" in str(record.error)
    with scripted_server(hanging) as env_id, closing(envgym.make(env_id)) as env:
        env.reset(seed=0)
        assert isinstance(env.unwrapped, OpenEnvEnv)
        monkeypatch.setattr(env.unwrapped._connection, "_timeout_s", 0.2)
        record = play(env, "one")
        assert record.ending is Ending.ERROR_ENV
        assert "nothing for 0.2 s" in str(record.error)
        let_go.set()


def test_a_lost_session_begins_again_at_the_next_reset() -> None:
    with scripted_server(answering(observation())) as env_id, closing(envgym.make(env_id)) as env:
        for _ in range(3):
            assert str(env.reset(seed=0).observation) == "hi"


def test_a_reset_that_is_over_or_refused_is_a_failure_of_the_env() -> None:
    refused = '{"type": "error", "data": {"message": "no such task", "code": "EXECUTION_ERROR"}}'
    for first, words in ((observation(done=True), "episode that continues"), (refused, "no such task")):
        with (
            scripted_server(answering(first)) as env_id,
            closing(envgym.make(env_id)) as env,
            pytest.raises(EnvFailure, match=words),
        ):
            env.reset(seed=0)


def test_a_path_that_the_server_does_not_have_is_one_sentence() -> None:
    with (
        scripted_server(answering()) as env_id,
        pytest.raises(InvalidInput, match=r"got no such page .*check the path"),
    ):
        envgym.make(f"{env_id}/nothing")


@pytest.mark.parametrize(
    "routes, words",
    [
        ({"/schema": "<html>"}, "answer with JSON"),
        ({"/schema": " " * (5 << 20)}, "at most 4194304 bytes"),
        ({"/schema": []}, "describe its actions at GET /schema"),
        ({"/schema": {"error": "x"}}, "describe its actions at GET /schema"),
        ({"/schema": {"action": 3}}, "schema of actions must be of an object"),
        ({"/list_environments": ["e"], "/e/splits": [{"name": "dev", "type": "other"}]}, "be train or test, got dev"),
    ],
)
def test_servers_of_another_protocol_are_refused_when_the_env_is_made(routes: Any, words: str) -> None:
    with scripted_server(answering(), routes) as env_id, pytest.raises(InvalidInput) as refused:
        envgym.make(env_id)
    assert words in str(refused.value)


def test_servers_that_are_not_there_or_silent_are_refused_when_the_env_is_made() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"openenv://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=r"answer, got (Read|Connect)Timeout"):
            envgym.make(address, timeout_s=0.2)
    with pytest.raises(InvalidInput, match=r"answer, got ConnectError.*start the server"):
        envgym.make(address)


@pytest.mark.parametrize("env_id", ["openenv://", "openenv:///x", "openenv://user@host:1", "openenv://host:port"])
def test_ids_without_a_host_are_refused(env_id: str) -> None:
    with pytest.raises(InvalidInput, match="have a host after its scheme"):
        envgym.make(env_id)


def test_settings_are_checked_when_the_env_is_made() -> None:
    with openenv_server(COUNTER) as server:
        for settings, words in (
            ({"observation": "{{"}, "be a Jinja template"),
            ({"timeout_s": 0.0}, "be above 0"),
            ({"level": 3}, "keyword argument must be a known name, got 'level'"),
            ({"reward_range": [2, 1]}, "reward_range must be two numbers, the lower one first"),
            ({"splits": {"train": "dev"}}, "name different splits among train, test"),
            ({"splits": {"train": "test", "test": "test"}}, "name different splits"),
        ):
            with pytest.raises(InvalidInput, match=words):
                envgym.make(id_of(server.url), **settings)
        with closing(envgym.make(id_of(server.url), splits={"train": "test"})) as env:
            first = env.reset(options={"split": "train", "index": 2}).info["envgym"]
            assert (first.task.id, env.unwrapped.tasks.size(envgym.Split.TEST)) == ("train/2", 0)
        words = "have the fields of the template, not only text, messages"
        nothing = envgym.make(id_of(server.url), observation="{{ nothing }}")
        with closing(nothing), pytest.raises(EnvFailure, match=words):
            nothing.reset(seed=0)
        with closing(envgym.make(id_of(server.url), observation="[{{ task_id }}] {{ text }}")) as env:
            first = env.reset(options={"split": "train", "index": 2})
            assert str(first.observation).startswith("[train/2] Say 2.")
