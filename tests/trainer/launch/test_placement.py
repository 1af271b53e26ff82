"""What the processes of a run take of a cluster, and which GPU is the run's own."""

from pathlib import Path
from typing import Any

import pytest

from envgym.agents.models.loading import resolve_model
from envgym.agents.policies.serving.backend import PolicyEndpoints
from envgym.errors import SettingsError
from envgym.runtime.processes.handles import LocalStarter
from envgym.trainer.launch import placement
from envgym.trainer.launch.launch import _own_threads, endpoints_of, process_specs
from envgym.trainer.launch.placement import bundles_of, gpus_of_servers, placed, roles_of
from envgym.trainer.launch.settings import LaunchSettings
from envgym.trainer.learner.ranks.meeting import Meeting
from tests.support.tiny_runs import tiny_settings

PROCESSES: dict[str, Any] = {"launcher": "ray", "learners": 2, "servers": 1, "env_servers": 1}
ROLES = ["env-server-0", "policy-server-0", "learner-1"]


def test_roles_are_those_of_the_processes_that_are_started(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch=PROCESSES)
    assert roles_of(settings.launch, has_ranks=True) == ROLES
    assert roles_of(settings.launch, has_ranks=False) == ROLES[:2]
    specs = process_specs(settings, Meeting.at_address(0, 2, "10.0.0.1:999"), hosts=dict.fromkeys(ROLES, "10.0.0.2"))
    assert [spec.role for spec in specs] == ROLES
    assert all(spec.command[-4:] == ("--host", "10.0.0.2", "--port", "0") for spec in specs[:2])
    assert specs[2].command[:7] == ("learner-rank", "--rank", "1", "--of", "2", "--meeting", "10.0.0.1:999")


def test_without_a_cluster_processes_start_here(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch={"env_servers": 1})
    with placed(
        settings.launch, ["env-server-0"], run=tmp_path, model=settings.model, engine=settings.engine
    ) as places:
        assert isinstance(places.starter, LocalStarter)
        assert (dict(places.hosts), places.host, places.gpu) == ({}, "", None)


@pytest.mark.parametrize("device, gpus", [("cuda", 1), ("cpu", 0)])
def test_only_processes_with_the_model_take_a_gpu_and_see_the_run(tmp_path: Path, device: str, gpus: int) -> None:
    ray = {"learner_cpus": 2, "server_cpus": 3, "env_server_cpus": 4}
    settings = tiny_settings(tmp_path, launch={**PROCESSES, "ray": ray}, engine={"device": device})
    bundles = bundles_of(settings.launch.ray, ROLES, model=settings.model, engine=settings.engine)
    assert [(item.role, item.cpus, item.gpus) for item in bundles] == [
        ("controller", 2, gpus),
        ("env-server-0", 4, 0),
        ("policy-server-0", 3, gpus),
        ("learner-1", 2, gpus),
    ]
    assert [item.sees_run for item in bundles] == [False, False, True, True]
    model = str(Path(resolve_model("tiny", tiny=settings.model.tiny)).resolve())
    assert [item.directories for item in bundles] == [(), (), (model,), (model,)]


def test_share_of_a_gpu_that_is_set_is_taken_on_any_device(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch={**PROCESSES, "ray": {"learner_gpus": 0, "server_gpus": 0.5}})
    bundles = bundles_of(settings.launch.ray, ROLES, model=settings.model, engine=settings.engine)
    assert [item.gpus for item in bundles] == [0, 0, 0.5, 0]


@pytest.mark.parametrize(
    "engine, threads",
    [({}, {"policy-server-0": "6", "learner-1": "2"}), ({"threads": 3}, dict.fromkeys(ROLES[1:], "3"))],
)
def test_each_process_has_threads_of_its_cpus(tmp_path: Path, engine: dict[str, Any], threads: dict[str, str]) -> None:
    ray = {"learner_cpus": 2.5, "server_cpus": 6, "env_server_cpus": 9}
    settings = tiny_settings(tmp_path, launch={**PROCESSES, "ray": ray}, engine=engine)
    specs = process_specs(settings, Meeting.at_address(0, 2, "10.0.0.1:999"), hosts=dict.fromkeys(ROLES, "10.0.0.2"))
    commands = {spec.role: list(spec.command) for spec in specs if "--threads" in spec.command}
    assert {role: words[words.index("--threads") + 1] for role, words in commands.items()} == threads
    alone = tiny_settings(tmp_path, launch={"launcher": "ray", "servers": 1, "ray": ray}, engine=engine)
    assert _own_threads(alone, None) == engine.get("threads", 2)


@pytest.mark.parametrize(
    "visible, given, number", [("", ("2",), 2), ("4,5,6", ("5",), 1), ("GPU-a,GPU-b", ("GPU-b",), 1), ("0", (), None)]
)
def test_gpu_is_numbered_among_those_that_this_process_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str, given: tuple[str, ...], number: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert placement._visible_number(given) == number


def test_servers_of_other_machines_read_weights_from_a_directory_that_they_see(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, launch=PROCESSES)
    endpoints = endpoints_of(settings, {"policy-server-0": "http://a:1"}, weights=tmp_path / "weights")
    assert endpoints.policy == PolicyEndpoints(urls=("http://a:1",), transport="files", weights=tmp_path / "weights")


def test_server_whose_weights_are_split_takes_as_many_gpus_of_one_node(tmp_path: Path) -> None:
    engine = {"device": "cuda", "tensor_parallel": 4}
    launch = {**PROCESSES, "server_engine": "vllm"}
    settings = tiny_settings(tmp_path, launch=launch, engine=engine)
    bundles = bundles_of(settings.launch.ray, ROLES, model=settings.model, engine=settings.engine)
    assert [(item.role, item.gpus) for item in bundles] == [
        ("controller", 1),
        ("env-server-0", 0),
        ("policy-server-0", 4),
        ("learner-1", 1),
    ]
    on_cpu = settings.engine.model_copy(update={"device": "cpu"})
    assert bundles_of(settings.launch.ray, ROLES, model=settings.model, engine=on_cpu)[2].gpus == 0
    few = settings.launch.ray.model_copy(update={"server_gpus": 2.0})
    with pytest.raises(SettingsError, match=r"launch.ray.server_gpus must be at least 4, as engine.tensor_parallel is"):
        bundles_of(few, ROLES, model=settings.model, engine=settings.engine)


@pytest.mark.parametrize(
    "launch, visible, expected",
    [
        ({"servers": 2}, "0,1,2,3,4", ["1,2", "3,4"]),  # after the rank's
        ({"servers": 1, "learners": 2}, "0,1,2", ["0,1"]),  # one is left, so the ranks' are shared
        ({"servers": 1}, "0,1", ["0,1"]),
        ({"servers": 1, "transport": "nccl"}, "4,5,6", ["5,6"]),
    ],
)
def test_servers_on_this_machine_have_the_gpus_after_those_of_the_ranks(
    launch: dict[str, Any], visible: str, expected: list[str]
) -> None:
    settings = LaunchSettings(server_engine="vllm", **launch)
    assert gpus_of_servers(settings, visible.split(","), each=2) == expected


def test_servers_that_need_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"GPUs must be at least 4, as engine.tensor_parallel is, got 3"):
        gpus_of_servers(LaunchSettings(servers=1), ["0", "1", "2"], each=4)
    with pytest.raises(SettingsError, match=r"launch.servers must be at most 2, as 2 of 4 GPUs are for each .* got 3"):
        gpus_of_servers(LaunchSettings(servers=3), ["0", "1", "2", "3", "4"], each=2)
    with pytest.raises(SettingsError, match=r"launch.servers must be at most 1, as 2 of 2 GPUs are for each .* got 2"):
        gpus_of_servers(LaunchSettings(servers=2, learners=2), ["0", "1", "2"], each=2)
    with pytest.raises(SettingsError, match=r"at least 5 for transport nccl, one for each rank and 2 for each server"):
        gpus_of_servers(LaunchSettings(servers=2, transport="nccl"), ["0", "1", "2", "3"], each=2)


def test_servers_of_several_gpus_are_given_no_weights_by_ipc(tmp_path: Path) -> None:
    launch = {"servers": 1, "server_engine": "vllm", "transport": "ipc"}
    tiny_settings(tmp_path, launch=launch, engine={"device": "cpu", "tensor_parallel": 2})
    with pytest.raises(SettingsError, match=r"launch.transport must be files or nccl .*, got ipc"):
        tiny_settings(tmp_path, launch=launch, engine={"device": "cuda", "tensor_parallel": 2})
    ipc = LaunchSettings(servers=1, server_engine="vllm", transport="ipc")
    assert gpus_of_servers(ipc, ["0", "1", "2"]) == ["0"]
    with pytest.raises(SettingsError, match=r"launch.transport must be files or nccl with engine.tensor_parallel"):
        gpus_of_servers(ipc, ["0", "1", "2"], each=2)
    with pytest.raises(SettingsError, match=r"for transport nccl.*or set launch.transport=files\."):
        gpus_of_servers(LaunchSettings(servers=2, transport="nccl"), ["0", "1", "2", "3"], each=2)
