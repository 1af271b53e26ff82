"""Servers that join and leave a run: by the list in its directory, with the newest weights, without a lost episode."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.weights.weight_store import compute_digests
from envgym.cli.main import main
from envgym.runs.files import SERVERS
from envgym.runtime.membership import ServerKind, WatchedServers, read_servers, write_servers
from envgym.serving.pool import pool_of
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.agents.policies.serving.running import serving
from tests.support.env_server import running_server, wait_until
from tests.support.tiny_runs import step_metrics, tiny_settings
from tests.trainer.test_policy_servers import tiny_model

WORDS = "tests.support.tiny_runs:EvenWords"
NOBODY = "http://127.0.0.1:9"


class AfterSteps(Callback):
    def __init__(self, calls: dict[int, Callable[[], None]]) -> None:
        self._calls = calls

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._calls.get(step, lambda: None)()


def test_servers_of_both_kinds_join_and_leave_in_mid_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(tiny_model()) as first,
        serving(tiny_model()) as second,
        running_server(WORDS) as first_env,
        running_server(WORDS) as second_env,
    ):
        changes = ["servers", str(tmp_path / "run")]
        sessions: dict[str, int] = {}

        def join() -> None:
            added = ["--add", second.http.url, "--add", NOBODY]
            assert main([*changes, "policy", *added]) == main([*changes, "env", "--add", second_env.http.url]) == 0
            listed = read_servers(tmp_path / "run" / SERVERS)
            assert listed[ServerKind.POLICY] == (first.http.url, second.http.url, NOBODY)
            assert listed[ServerKind.ENV] == (first_env.http.url, second_env.http.url)
            wait_until(lambda: second._policy.version == 1)  # the newest weights, before its first request
            wait_until(lambda: len(pool_of((first_env.http.url,)).clients) == 2)
            assert compute_digests(second._module.named_parameters()) == compute_digests(
                first._module.named_parameters()
            )

        def leave() -> None:
            sessions["first"], sessions["second"] = first_env.metrics.opened, second_env.metrics.opened
            assert main([*changes, "policy", "--remove", first.http.url, "--remove", NOBODY]) == 0
            assert main([*changes, "env", "--remove", first_env.http.url]) == 0
            wait_until(lambda: not first.http.connections)  # the run has let go of it
            wait_until(lambda: len(pool_of((first_env.http.url,)).clients) == 1)

        settings = tiny_settings(
            tmp_path / "run",
            run={"steps": 5},
            envs=[{"id": WORDS, "servers": [first_env.http.url]}],
            engine=engine(first.http.url),
            launch={"launcher": "static", "servers": 1, "env_servers": 1},
        )
        train(settings, callbacks=[AfterSteps({1: join, 3: leave})])
        assert (first._policy.version, second._policy.version) == (3, 5)
        assert first_env.metrics.opened == sessions["first"]
        assert second_env.metrics.opened > sessions["second"] > 0
    told = [record.getMessage() for record in caplog.records if record.name == "envgym.runtime.membership"]
    assert len(told) == 1
    assert told[0].startswith(f"{NOBODY} cannot join: server must be reachable, got ConnectionFailed")
    assert not (tmp_path / "run" / SERVERS).exists()
    for row in step_metrics(tmp_path / "run"):
        assert row["rollout/episodes"] == 8
        assert row["rollout/invalid"] == 0
        assert not {"requests/retried", "rollout/reissued", "processes/restarts"} & row.keys()


def engine(*urls: str) -> dict[str, Any]:
    return {"device": "cpu", "backend": {"name": "policy_servers", "servers": list(urls)}}


def test_a_run_that_does_not_run_has_no_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["servers", str(tmp_path), "env", "--add", NOBODY]) == 2
    assert "run must be one that is running, with servers, got no servers.json" in capsys.readouterr().err
    assert main(["servers", str(tmp_path / "nothing"), "env", "--add", NOBODY]) == 2
    assert "run directory must exist, got No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, told",
    [
        (["--add", NOBODY], "kind must be policy or env, got none"),
        (["env", "--add", "10.0.0.7:8700"], "server must have an address with a port, got 10.0.0.7:8700"),
        (["env", "--add", "http://10.0.0.7"], "server must have an address with a port, got http://10.0.0.7"),
        (["env", "--add", "http://a:1/math/x-v0"], "server must have an address with a port, got http://a:1/math/x-v0"),
    ],
)
def test_what_is_no_address_is_refused_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    file = tmp_path / SERVERS
    write_servers(file, {ServerKind.POLICY: (), ServerKind.ENV: ("http://a:1",)})
    assert main(["servers", str(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err
    assert read_servers(file)[ServerKind.ENV] == ("http://a:1",)


def test_list_is_shown_and_changed_once_for_each_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_servers(tmp_path / SERVERS, {ServerKind.POLICY: ("http://p:1",), ServerKind.ENV: ("http://a:1",)})
    added = ["--add", "http://b:2/", "--add", "http://b:2", "--remove", "http://c:3", "--remove", "http://a:1"]
    assert main(["servers", str(tmp_path), "env", *added]) == 0
    assert capsys.readouterr().out == "env  http://b:2\n"
    assert main(["servers", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"policy": ["http://p:1"], "env": ["http://b:2"]}


def test_list_of_something_else_changes_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / SERVERS
    watched = WatchedServers(file, ServerKind.ENV)
    assert watched.changes(["http://b:2"]) == ([], [])
    write_servers(file, {ServerKind.POLICY: (), ServerKind.ENV: ("http://a:1",)})
    assert watched.changes(["http://b:2"]) == (["http://b:2"], ["http://a:1"])
    assert watched.changes(["http://a:1"]) == ([], [])
    file.write_text('{"env": ["http://b:2"]}')
    assert watched.changes(["http://a:1"]) == watched.changes(["http://a:1"]) == ([], [])
    assert "list of servers must hold addresses under policy and env, got KeyError: " in caplog.text
    assert len(caplog.records) == 1
    write_servers(file, {ServerKind.POLICY: ("http://p:1",), ServerKind.ENV: ("http://a:1",)})
    assert watched.changes(["http://a:1"]) == ([], [])  # nothing is new for this kind
