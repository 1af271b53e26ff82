"""The directory `docker/`: every image takes another base, copies what there is, and compose builds those files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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


def test_compose_builds_the_three_images_on_bases_that_can_be_named() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    built = {name: service["build"] for name, service in services.items()}
    assert sorted(built) == ["retriever", "sandbox", "train"] == [path.parent.name for path in DOCKERFILES]
    for name, build in built.items():
        context = ROOT / "docker" / build["context"]
        dockerfile = context / build.get("dockerfile", "Dockerfile")
        assert dockerfile.resolve() == ROOT / "docker" / name / "Dockerfile"
        default = re.search(r"^ARG BASE=(\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
        assert default is not None
        assert build["args"]["BASE"] == f"${{{name.upper()}_BASE:-{default[1]}}}"


def test_without_docker_a_command_runs_all_the_same_and_the_reason_is_printed() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "with_docker.py"), sys.executable, "-c", "print('ran'); exit(3)"]
    done = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "No Docker engine: the program docker is not installed. Tests that need one are skipped.",
        "ran",
    ]
    assert done.returncode == 3
