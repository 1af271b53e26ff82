"""`envgym serve` from its first line to its exit code."""

import json
import re
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

import envgym
from envgym.cli.main import main
from envgym.errors import InvalidInput
from envgym.runtime.processes.log import LOG_VARIABLE, ROLE_VARIABLE, RUN_VARIABLE, Ids, about, close_log, open_log
from envgym.serving.wire import TOKEN_VARIABLE
from tests.support.env_server import COUNTER, SLOW_COUNTER, serve_envs


@pytest.mark.processes
@pytest.mark.parametrize("sends", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_every_env_and_ends_the_server(sends: signal.Signals) -> None:
    with serve_envs(COUNTER, SLOW_COUNTER, "--set", "max_turns=1", sends=sends) as url:
        for env_id in (COUNTER, SLOW_COUNTER):
            env = envgym.make(f"{url}/{env_id}")
            env.reset(seed=0)
            assert env.step("go").truncated  # the server's own setting


@pytest.mark.processes
def test_a_server_with_a_token_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_envs(COUNTER, variables={TOKEN_VARIABLE: "right"}) as url:
        for given, got in (("", "none"), ("wrong", "another")):
            monkeypatch.setenv(TOKEN_VARIABLE, given)
            said = f"token must be the server's, got {got} ({url}); export its token as {TOKEN_VARIABLE}."
            with pytest.raises(InvalidInput, match=rf"^{re.escape(said)}$"):
                envgym.make(f"{url}/{COUNTER}")
        monkeypatch.setenv(TOKEN_VARIABLE, "right")
        with closing(envgym.make(f"{url}/{COUNTER}")) as env:
            env.reset(seed=0)


@pytest.mark.processes
def test_openenv_is_served_until_a_signal() -> None:
    with serve_envs("--protocol", "openenv", COUNTER, SLOW_COUNTER) as url:
        for path in ("", f"/{SLOW_COUNTER}"):
            env = envgym.make(f"openenv://{url.removeprefix('http://')}{path}")
            env.reset(seed=0)
            assert env.step("go").observation == "turn 1"


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, told in (
            ((COUNTER, "--port", port), f"address must be free to listen on, got 127.0.0.1 port {port}"),
            (("math/arithmetics-v0",), "env id must be a known name"),
            ((COUNTER, "--set", "colour=red"), "keyword argument must be a known name"),
            ((COUNTER, "--sessions", "0"), "limits must be above 0"),
            ((COUNTER, "--port", "-1"), "--port"),
            ((COUNTER, "--protocol", "openenv", "--port", port), "address must be free to listen on"),
            ((COUNTER, "--protocol", "openenv", "--no-oracle"), "options must be among --host, --port"),
            ((COUNTER, "--protocol", "openai"), "must be one of 'envgym', 'openenv'"),
        ):
            assert main(["serve", *words]) == 2
            assert told in capsys.readouterr().err


@pytest.mark.processes
def test_the_log_of_a_server_has_the_ids_of_the_clients_episode(tmp_path: Path) -> None:
    open_log(tmp_path / "client.jsonl", run="demo", role="controller")
    try:
        variables = {LOG_VARIABLE: str(tmp_path / "server.jsonl"), RUN_VARIABLE: "demo", ROLE_VARIABLE: "env-server-0"}
        with (
            serve_envs(COUNTER, variables=variables) as url,
            closing(envgym.make(f"{url}/{COUNTER}")) as env,
            about(Ids("step-000001/000/00", 3)),
        ):
            env.reset(seed=0)
            env.step("go")
    finally:
        close_log()
    lines = [json.loads(line) for line in (tmp_path / "server.jsonl").read_text(encoding="utf-8").splitlines()]
    calls = [line for line in lines if line.get("event") == "env_call"]
    assert [(line["call"], line["episode"], line["branch"]) for line in calls] == [
        ("reset", "step-000001/000/00", 3),
        ("step", "step-000001/000/00", 3),
    ]
