"""The directory `docker/`: every image takes another base, copies what there is, and compose builds those files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envgym.cli.main import main
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.process import ProcessSpec
from tests.support.pages import SMALL

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_image_takes_a_base_runs_as_a_user_and_copies_what_there_is(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert re.fullmatch(r"ARG BASE=\S+", lines[0])
    assert lines[1] == "FROM ${BASE}"
    assert [line for line in lines if line.startswith("USER ")][-1] in ("USER 1000:1000", "USER envgym")
    for line in lines:
        for source in line.split()[1:-1] if line.startswith("COPY ") else ():
            assert (ROOT / source).exists()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_constraints_of_an_image_are_such_as_pip_takes(path: Path) -> None:
    for name in re.findall(r"--constraint (\S+)", path.read_text(encoding="utf-8")):
        lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        assert lines
        assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []  # pip refuses extras


def test_compose_builds_the_three_images_on_bases_that_can_be_named() -> None:
    built = {name: service["build"] for name, service in SERVICES.items() if "build" in service}
    assert {service["image"] for service in SERVICES.values()} == {f"envgym-{name}" for name in built}
    assert sorted(built) == ["retriever", "sandbox", "train"] == [path.parent.name for path in DOCKERFILES]
    for name, build in built.items():
        context = ROOT / "docker" / build["context"]
        dockerfile = context / build.get("dockerfile", "Dockerfile")
        assert dockerfile.resolve() == ROOT / "docker" / name / "Dockerfile"
        default = re.search(r"^ARG BASE=(\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
        assert default is not None
        assert build["args"]["BASE"] == f"${{{name.upper()}_BASE:-{default[1]}}}"
        extras = re.search(r"^ARG EXTRAS=(\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
        assert build["args"].get("EXTRAS") == (extras and f"${{{name.upper()}_EXTRAS:-{extras[1]}}}")


def with_defaults(word: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word)


def command_of(service: str, **places: str) -> list[str]:
    """Return the command of a service with the default of each variable, and other addresses and folders."""
    words = [with_defaults(word) for word in SERVICES[service]["command"]]
    for old, new in places.items():
        words = [word.replace(old, new) for word in words]
    return words


def test_gpus_are_added_to_services_that_are_there() -> None:
    added = yaml.safe_load((ROOT / "docker" / "compose.gpu.yaml").read_text(encoding="utf-8"))["services"]
    assert set(added) == {"learner", "policy-server"} < set(SERVICES)


def test_services_ask_only_for_services_and_volumes_that_are_there() -> None:
    volumes = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["volumes"]
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        named = {with_defaults(volume).partition(":")[0] for volume in service.get("volumes", ())}
        assert named <= set(volumes)


@pytest.mark.docker
def test_compose_reads_both_files_as_they_are_meant() -> None:
    compose = ["docker", "compose"]
    if shutil.which("docker") is None or subprocess.run([*compose, "version"], check=False).returncode:
        pytest.skip("the plugin docker compose is not installed")
    files = [f"--file={ROOT / 'docker' / name}" for name in ("compose.yaml", "compose.gpu.yaml")]
    command = [*compose, "--env-file=/dev/null", *files, "--profile=*", "config", "--format=json"]
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "RUN": "mine"}
    variables |= {name: os.environ[name] for name in ("DOCKER_CONFIG",) if name in os.environ}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert services.keys() == SERVICES.keys()
    assert "run.directory=/runs/mine" in services["learner"]["command"]
    for name, gpu in (("learner", "0"), ("policy-server", "1")):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [gpu]


@pytest.mark.processes
def test_processes_of_compose_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGYM_POLICY_TOKEN", "a-token-of-policies")
    monkeypatch.setenv("ENVGYM_ENV_SERVER_TOKEN", "a-token-of-environments")
    (tmp_path / "compose").mkdir()
    resume, folder = "none", tmp_path / "logs"
    with Processes(folder, run="compose", resume=resume) as processes:
        commands = {name: command_of(name, **{"8001": "0", "8700": "0"}) for name in ("policy-server", "env-server")}
        processes.start(ProcessSpec(name, command) for name, command in commands.items())
        ready = processes.wait_ready(timeout_s=120)
        ports = {name: str(ready[name]["url"]).rpartition(":")[2] for name in commands}
        urls = {f"http://{name}:{port}": f"http://127.0.0.1:{ports[name]}" for name, port in PORTS.items()}
        command = command_of("learner", **urls, **{"/runs": str(tmp_path)})
        small = [setting for setting in SMALL if not setting.startswith("model.")]
        words = [word for setting in small for word in ("--set", setting)]
        assert main([*command, *words]) == 0
    assert (tmp_path / "compose" / "report.html").exists()
    assert list((tmp_path / "compose-weights").iterdir())


PORTS = {"policy-server": "8001", "env-server": "8700"}


def test_without_docker_a_command_runs_all_the_same_and_the_reason_is_printed() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "with_docker.py"), sys.executable, "-c", "print('ran'); exit(3)"]
    done = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "No Docker engine: the program docker is not installed. Tests that need one are skipped.",
        "ran",
    ]
    assert done.returncode == 3
