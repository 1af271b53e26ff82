"""Processes beside a run: what is started, where it serves, and that nothing changes but where the work is done."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.models.loading import resolve_model
from envgym.agents.policies.backends import server_limits
from envgym.agents.policies.serving.backend import PolicyEndpoints, PolicyServers
from envgym.errors import SettingsError
from envgym.runtime.processes.log import read_trace
from envgym.trainer.launch.launch import check_addresses, endpoints_of, process_specs
from envgym.trainer.launch.placement import gpus_of_servers
from envgym.trainer.launch.server_membership import following
from envgym.trainer.launch.settings import LaunchSettings
from envgym.trainer.train import train
from tests.support.tiny_runs import StartedProcesses, step_metrics, tiny_settings

GAMES: dict[str, list[dict[str, object]]] = {
    "envs": [{"id": "puzzles/guess_number-v0"}, {"id": "math/arithmetic-v0", "settings": {"level": 1}}]
}
ELSEWHERE = "http://10.0.0.7:8700"


def test_servers_have_the_envs_that_name_none(tmp_path: Path) -> None:
    envs = [*GAMES["envs"], {"id": "puzzles/sudoku-v0", "servers": [ELSEWHERE]}, GAMES["envs"][0] | {"name": "again"}]
    settings = tiny_settings(tmp_path, envs=envs, launch={"env_servers": 2})
    specs = process_specs(settings)
    assert [spec.role for spec in specs] == ["env-server-0", "env-server-1"]
    for spec in specs:
        ids, accepted = (
            ("puzzles/guess_number-v0", "math/arithmetic-v0"),
            ("--accept", 'math/arithmetic-v0={"level":1}'),
        )
        assert spec.command == ("serve", *ids, *accepted, "--client-tasks", "--port", "0")
    endpoints = endpoints_of(settings, {"env-server-0": "http://a:1", "env-server-1": "http://b:2"})
    assert endpoints.env_servers == ("http://a:1", "http://b:2")
    assert endpoints.policy is None


def test_policy_servers_have_the_model_of_the_run(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch={"servers": 2}, engine={"threads": 3, "max_batch": 5, "device": "cpu"})
    specs = process_specs(settings)
    assert [spec.role for spec in specs] == ["policy-server-0", "policy-server-1"]
    directory = str(resolve_model("tiny", tiny=settings.model.tiny))
    options = "--dtype float32 --device cpu --threads 3 --max-batch 5 --port 0"
    assert specs[1].command == ("policy-server", directory, "--engine", "transformers", *options.split())
    endpoints = endpoints_of(settings, {"policy-server-0": "http://a:1", "policy-server-1": "http://b:2"})
    assert endpoints.policy == PolicyEndpoints(urls=("http://a:1", "http://b:2"), transport="files")
    assert endpoints.engine(settings.engine).threads == 3
    assert endpoints.env_servers == ()


def test_workers_are_started_beside_the_servers(tmp_path: Path) -> None:
    specs = process_specs(tiny_settings(tmp_path, launch={"servers": 1, "rollout_workers": 2}))
    assert [spec.role for spec in specs] == ["policy-server-0", "rollout-worker-0", "rollout-worker-1"]
    assert specs[2].command == ("rollout-worker", "--port", "0")
    assert specs[2].is_restarted


BACKEND = {"backend": {"name": "policy_servers", "servers": [ELSEWHERE]}}


@pytest.mark.parametrize(
    "envs, launch, told",
    [
        (GAMES["envs"], {"launcher": "static", "env_servers": 1}, "addresses in envs must be 1, .*, got 0"),
        ([{"id": "a/b-v0", "servers": [ELSEWHERE]}], {"launcher": "static"}, "addresses in envs must be 0, .*, got 1"),
        ([{"id": "a/b-v0", "servers": [ELSEWHERE]}], {"env_servers": 1}, "must be 0 where every env names its servers"),
    ],
)
def test_addresses_that_do_not_fit_are_refused(
    tmp_path: Path, envs: list[dict[str, object]], launch: dict[str, object], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        check_addresses(tiny_settings(tmp_path, envs=envs, launch=launch))


@pytest.mark.parametrize(
    "launch, visible, expected",
    [
        ({"learners": 2, "servers": 2}, "0123", ["2", "3"]),
        ({"learners": 2, "servers": 3}, "456", ["6", "6", "6"]),
        ({"learners": 2, "servers": 2}, "0", ["0", "0"]),
        ({"learners": 2, "servers": 3, "transport": "ipc"}, "0123", ["0", "1", "0"]),
        ({"learners": 1, "servers": 2, "transport": "nccl"}, "012", ["1", "2"]),
    ],
)
def test_servers_have_the_gpus_behind_the_ranks(launch: dict[str, Any], visible: str, expected: list[str]) -> None:
    assert gpus_of_servers(LaunchSettings(**launch), list(visible)) == expected


def test_too_few_gpus_for_nccl_are_told(tmp_path: Path) -> None:
    launch = LaunchSettings(learners=2, servers=2, transport="nccl")
    with pytest.raises(
        SettingsError, match=r"GPUs must be at least 4 for transport nccl, one for each rank and s.*, got 3"
    ):
        gpus_of_servers(launch, ["0", "1", "2"])
    with pytest.raises(SettingsError, match=r"engine\.device must name no GPU where several .*, got cuda:1"):
        tiny_settings(tmp_path, launch={"learners": 2}, engine={"device": "cuda:1"})


def test_shared_memory_is_refused_between_machines(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"launch\.transport must be another with the launcher ray, got ipc"):
        tiny_settings(tmp_path, launch={"launcher": "ray", "servers": 1, "transport": "ipc"})


@pytest.mark.parametrize(
    "launch",
    [{"transport": "ipc"}, {"server_engine": "vllm"}, {"launcher": "static", "servers": 1, "transport": "ipc"}],
)
def test_what_no_server_would_do_is_refused(tmp_path: Path, launch: dict[str, object]) -> None:
    with pytest.raises(
        SettingsError, match=r"must be left at \w+ where the run starts no policy server, got \w+ .*--s"
    ):
        tiny_settings(tmp_path, launch=launch)


NO_SERVER = r"where the run starts no server, got [\d.]+ \(launch\); leave it out, or set launch.servers or"


@pytest.mark.parametrize(
    "launch, told",
    [
        ({"restarts": 0}, rf"launch\.restarts must be left at 3 {NO_SERVER}"),
        ({"learners": 2, "restarts": 5}, rf"launch\.restarts must be left at 3 {NO_SERVER}"),
        (
            {"launcher": "static", "servers": 1, "health_timeout_s": 5},
            rf"health_timeout_s must be left at 60.0 {NO_SERVER}",
        ),
        (
            {"servers": 1, "ray": {"server_cpus": 4}},
            r"launch\.ray\.server_cpus must be left at 1.0 with another launcher than ray, got 4.0 \(launch",
        ),
        (
            {"ray": {"learner_gpus": 1}},
            r"launch\.ray\.learner_gpus must be left at null with another launcher than ray",
        ),
    ],
)
def test_what_nothing_that_is_started_would_do_is_refused(tmp_path: Path, launch: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        tiny_settings(tmp_path, launch=launch)
    used = {"env_servers": 1, **launch, "launcher": "ray"}
    assert tiny_settings(tmp_path, launch=used).launch.num_started >= 1


@pytest.mark.parametrize(
    "launch, told",
    [
        ({"launcher": "static", "servers": 2}, "addresses in engine.backend must be 2, .*, got 1"),
        ({"servers": 1}, "engine.backend must have no servers where policy servers are started, got {'servers': "),
    ],
)
def test_policy_servers_that_do_not_fit_are_refused(tmp_path: Path, launch: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        check_addresses(tiny_settings(tmp_path, engine=BACKEND, launch=launch))
    check_addresses(tiny_settings(tmp_path, engine=BACKEND, launch={"launcher": "static", "servers": 1}))


def test_limits_of_servers_that_the_run_starts_are_those_of_the_backend(tmp_path: Path) -> None:
    limits = {"retries": 7, "update_timeout_s": 20.0, "wait_s": 5.0}
    settings = tiny_settings(
        tmp_path, launch={"servers": 1}, engine={"backend": {"name": "policy_servers", **limits}, "device": "cpu"}
    )
    check_addresses(settings)
    endpoints = endpoints_of(settings, {"policy-server-0": "http://a:1"}).policy
    assert endpoints == PolicyEndpoints(urls=("http://a:1",), transport="files")
    backend = server_limits(settings.engine)
    assert (backend.retries, backend.update_timeout_s, backend.wait_s) == (7, 20.0, 5.0)
    with following(tmp_path / "servers.json", endpoints, (), start_s=300.0) as policy:
        assert policy == replace(endpoints, list_file=tmp_path / "servers.json", start_s=300.0)
        assert [backend.limits(policy).wait_s, PolicyServers().limits(policy).wait_s] == [5.0, 300.0]
        assert PolicyServers().limits(endpoints).wait_s == 30.0
    assert not (tmp_path / "servers.json").exists()


@pytest.mark.parametrize(
    "backend, told",
    [
        ({"name": "policy_servers", "transport": "gloo"}, "must have no transport where policy servers are started"),
        ({"name": "policy_servers", "token_env": "MINE"}, "must have no token_env where policy servers are started"),
        ({"name": "policy_servers", "retries": -1}, "retries"),
        ({"name": "policy_servers", "retrys": 1}, "retrys"),
        ("vllm", "engine.backend must be transformers, or policy_servers with limits, .*, got vllm"),
    ],
)
def test_what_is_no_limit_of_started_servers_is_refused(tmp_path: Path, backend: object, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        check_addresses(tiny_settings(tmp_path, launch={"servers": 1}, engine={"backend": backend}))


@pytest.mark.processes
def test_run_with_servers_has_the_numbers_of_the_run_without(tmp_path: Path) -> None:
    started = StartedProcesses()
    agent = {"name": "tool_calling", "max_turn_tokens": 24, "max_context_tokens": 1024}
    alone = tiny_settings(tmp_path / "alone", **GAMES, agent=agent)
    train(alone)
    train(
        tiny_settings(tmp_path / "served", **GAMES, agent=agent, launch={"env_servers": 1, "servers": 1}),
        callbacks=[started],
    )
    # Calls of servers end at times of their own, so other episodes may be sampled side by side: equal up to rounding.
    for served, local in zip(step_metrics(tmp_path / "served"), step_metrics(tmp_path / "alone"), strict=True):
        assert served.pop("cost/tokens_prefilled") > 0 < local.pop("cost/tokens_prefilled")
        assert served == pytest.approx(local, rel=1e-4, abs=1e-6)
    assert len(started.pids) == 2
    for pid in started.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert '"servers": []' in (tmp_path / "served" / "config.json").read_text()  # addresses of then are of no use
    roles = {entry["role"] for entry in read_trace(tmp_path / "served", "step-000001/000")}
    assert roles == {"controller", "env-server-0", "policy-server-0"}
