"""Servers that join and leave a run: by the list in its directory, with the newest weights, without a lost episode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.serving.weight_store import compute_digests
from envgym.cli.main import main
from envgym.server_list import SERVERS_FILE, ServerKind, read_servers
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
    """Calls a function after some steps."""

    def __init__(self, calls: dict[int, Callable[[], None]]) -> None:
        """Take them by step."""
        self._calls = calls

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Call that of the step."""
        self._calls.get(step, lambda: None)()


def test_servers_of_both_kinds_join_and_leave_in_mid_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
            listed = {ServerKind.POLICY: (first.http.url, second.http.url, NOBODY)}
            listed[ServerKind.ENV] = (first_env.http.url, second_env.http.url)
            assert read_servers(tmp_path / "run" / SERVERS_FILE) == listed
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
    told = [line for line in capfd.readouterr().err.splitlines() if "must" in line]
    assert len(told) == 1
    assert told[0].startswith("server must be reachable, got ConnectionFailed")
    assert NOBODY in told[0]
    assert not (tmp_path / "run" / SERVERS_FILE).exists()
    for row in step_metrics(tmp_path / "run"):
        assert row["rollout/episodes"] == 8
        assert row["rollout/invalid"] == 0
        assert not {"requests/retried", "rollout/reissued", "processes/restarts"} & row.keys()


def engine(*urls: str) -> dict[str, Any]:
    return {"device": "cpu", "backend": {"name": "policy_servers", "servers": list(urls)}}
