"""Processes on Ray's two-node test cluster: started, followed, ended, and lost with what they ran on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from envgym.errors import RunError, SettingsError
from envgym.runs.files import LOGS
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.process import ProcessSpec
from envgym.runtime.ray.placement import Bundle, PlacementRequest
from envgym.runtime.ray.starter import RayStarter, check_installed, placed_by_ray
from tests.envgym.runtime.processes.test_group import READY, WAIT, Interrupted, gone, python
from tests.support.ray_cluster import RayNodes, ray_nodes

ROLES = ("env-server-0", "policy-server-0", "learner-1")


@pytest.fixture(autouse=True)
def _needs_ray(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("ray") is not None:
        pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(num_cpus=2) as nodes:
        nodes.add(2)
        yield nodes


def asked(
    address: str, folder: Path, *roles: str, cpus: float = 1, strategy: str = "PACK", timeout_s: float = 60.0
) -> PlacementRequest:
    bundles = [Bundle(role=role, cpus=cpus, gpus=0, sees_run=True) for role in roles]
    return PlacementRequest(
        address=address,
        strategy=strategy,
        bundles=(Bundle(role="controller", cpus=1, gpus=0, sees_run=True), *bundles),
        directory=str(Path.cwd()),
        run=str(folder),
        timeout_s=timeout_s,
        clock_tolerance_s=5,
    )


def shown_actors(nodes: RayNodes) -> dict[str, str]:
    """Return what the dashboard shows of living actors: name -> node."""
    with urlopen(f"{nodes.dashboard}/api/v0/actors?detail=1", timeout=20) as answer:
        rows = json.load(answer)["data"]["result"]["result"]
    return {row["name"]: row["node_id"] for row in rows if row["state"] == "ALIVE"}


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_launcher_without_ray_says_what_to_install() -> None:
    with pytest.raises(SettingsError, match=r"Ray must be installed .*; run: pip install 'envgym\[ray\]'"):
        check_installed()


@pytest.mark.ray
def test_processes_run_beside_actors_that_have_their_names(nodes: RayNodes, tmp_path: Path) -> None:
    with placed_by_ray(asked(nodes.address, tmp_path, *ROLES, strategy="SPREAD")) as starter:
        assert tuple(starter.placement.hosts) == ROLES
        assert list(tmp_path.iterdir()) == []  # what the nodes looked for
        actors = shown_actors(nodes)
        assert set(actors) == {"controller", *ROLES}
        assert len(set(actors.values())) == 2
        logs = tmp_path / LOGS
        with Processes(logs, run="demo", resume="", starter=starter, interrupt_by=Interrupted()) as group:
            group.start([python(ROLES[0], READY, WAIT), python(ROLES[1], READY, "print('é')", WAIT)])
            group.start([python(ROLES[2], "print('x' * 100_000)", "raise SystemExit(0)", serves=False)])
            assert group.wait_ready(timeout_s=20)[ROLES[0]]["url"] == "http://here"
            deadline = time.monotonic() + 20
            while not group.states()[2].state.startswith("exit") and time.monotonic() < deadline:
                pass
            states = group.states()
            assert [state.state for state in states[:2]] == ["running", "running"]
            assert states[2].state == f"exit code 0 on node {starter.placement.host}"
            assert states[0].memory_mib > 1
        assert all(gone(state.pid) for state in states)
        assert json.loads((logs / f"{ROLES[1]}.jsonl").read_text().splitlines()[1])["message"] == "é"
    assert shown_actors(nodes) == {}


@pytest.mark.ray
def test_a_death_is_told_with_its_node(nodes: RayNodes, tmp_path: Path) -> None:
    interrupted = Interrupted()
    with (  # noqa: PT012
        placed_by_ray(asked(nodes.address, tmp_path, ROLES[0])) as starter,
        pytest.raises(RunError) as raised,
        Processes(tmp_path / LOGS, run="demo", resume="again", starter=starter, interrupt_by=interrupted) as group,
    ):
        group.start([python(ROLES[0], READY, WAIT)])
        group.wait_ready(timeout_s=20)
        os.kill(group.states()[0].pid, signal.SIGKILL)
        interrupted.wait()
    told = f"env-server-0 must run until the run ends, got the signal SIGKILL on node {starter.placement.host} ("
    assert str(raised.value).startswith(told)


@pytest.mark.ray
@pytest.mark.parametrize("what", ["actor", "driver"])
def test_a_process_ends_with_its_actor_and_with_the_driver(nodes: RayNodes, tmp_path: Path, what: str) -> None:
    with closing(RayStarter(asked(nodes.address, tmp_path, ROLES[0]))) as starter:
        starter.wait_placed()
        # As a command of envgym, which ends with its parent; the env server waits for clients.
        process = starter.start(ROLES[0], ("serve", "puzzles/guess_number-v0", "--port", "0"), {})
        assert any(b"guess_number" in line for line in process.lines())
        os.kill(parent_of(process.pid) if what == "actor" else starter._driver.pid, signal.SIGKILL)
        process.wait()
        assert process.returncode is None
        expected = {"actor": "its worker process has died", "driver": "the process that speaks with Ray has ended"}[
            what
        ]
        assert process.describe_ending().startswith(f"the loss of its actor on node {starter.placement.host}: ")
        assert expected in process.describe_ending()
        assert gone(process.pid)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


RUN = """
import sys, time
from pathlib import Path
from tests.envgym.runtime.ray.test_starter import asked, placed_by_ray
with placed_by_ray(asked(sys.argv[1], Path(sys.argv[2]), "env-server-0")) as starter:
    process = starter.start("env-server-0", ("serve", "puzzles/guess_number-v0", "--port", "0"), {})
    next(process.lines())
    print(process.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.ray
def test_nothing_outlives_a_run_that_was_killed(nodes: RayNodes, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, nodes.address, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        run.kill()
    assert gone(pid)
    deadline = time.monotonic() + 20
    while shown_actors(nodes) and time.monotonic() < deadline:
        pass
    assert shown_actors(nodes) == {}


@pytest.mark.ray
def test_a_killed_node_is_the_death_of_its_processes(nodes: RayNodes, tmp_path: Path) -> None:
    node, interrupted = nodes.add(2), Interrupted()
    roles = [f"env-server-{number}" for number in range(2)]  # one fits on each node but the head
    with (  # noqa: PT012
        placed_by_ray(asked(nodes.address, tmp_path, *roles, cpus=2)) as starter,
        pytest.raises(RunError) as raised,
        Processes(tmp_path / LOGS, run="demo", resume="again", starter=starter, interrupt_by=interrupted) as group,
    ):
        group.start([ProcessSpec(role, ("serve", "puzzles/guess_number-v0", "--port", "0")) for role in roles])
        group.wait_ready(timeout_s=60)
        pids = [state.pid for state in group.states()]
        started = time.monotonic()
        nodes.kill(node)
        interrupted.wait()
    assert time.monotonic() - started < 40
    assert ", got the loss of its actor on node " in str(raised.value)
    assert str(raised.value).endswith("then go on with: again.")
    assert all(gone(pid) for pid in pids)


@pytest.mark.ray
@pytest.mark.parametrize(
    "address, told",
    [
        (
            "127.0.0.1:1",
            "the Ray cluster at 127.0.0.1:1 must be reached, got Connection refused (launch.ray.address); ",
        ),
        ("ray://here:1", "Ray's address must be auto, local or HOST:PORT, got ray://here:1 (launch.ray.address); "),
        ("auto", "the Ray cluster at 127.0.0.1:1 must be reached, got Connection refused (launch.ray.address); "),
    ],
)
def test_missing_cluster_is_refused(tmp_path: Path, address: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(SettingsError) as raised, placed_by_ray(asked(address, tmp_path, ROLES[0])):
        pass
    assert str(raised.value).startswith(told)
    assert time.monotonic() - started < 20


@pytest.mark.ray
def test_address_where_no_cluster_answers_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    import socket

    started = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        request = asked(address, tmp_path, ROLES[0], timeout_s=1.0)
        with pytest.raises(SettingsError) as raised, placed_by_ray(request):
            pass
    assert str(raised.value).startswith(f"the Ray cluster at {address} must answer within 1 s, got ")
    assert time.monotonic() - started < 15


@pytest.mark.ray
def test_a_cluster_of_this_machine_lasts_as_long_as_the_block(tmp_path: Path) -> None:
    with placed_by_ray(asked("local", tmp_path, ROLES[0])) as starter:
        process = starter.start(ROLES[0], (sys.executable, "-c", "print('here')"), {})
        assert list(process.lines()) == [b"here\n"]
        process.wait()
        assert process.returncode == 0
        raylet = parent_of(starter_node(starter))
    assert gone(raylet)


def starter_node(starter: RayStarter) -> int:
    """Return the id of a child of the process that speaks with Ray: of the cluster that it has started."""
    children = Path(f"/proc/{starter._driver.pid}/task/{starter._driver.pid}/children").read_text().split()
    return int(children[0])
