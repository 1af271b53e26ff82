"""Runs on Ray's two-node test cluster: the numbers of a run on this machine, a node killed, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.cli.main import main
from envgym.errors import RunError
from envgym.runtime.processes.group import process_states
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.train import train
from tests.envgym.runtime.processes.test_group import gone
from tests.envgym.runtime.ray.test_starter import shown_actors
from tests.support.env_server import wait_until
from tests.support.ray_cluster import RayNodes, node_without, ray_nodes
from tests.support.sources import ROOT
from tests.support.tiny_runs import step_metrics, tiny_settings

pytestmark = pytest.mark.ray
PROCESSES = {"learners": 2, "servers": 1, "env_servers": 1}
SENTENCES = {
    "env_servers=9": (
        "the Ray cluster must have 10 CPUs and 0 GPUs for 10 processes, each on one node, got 6 CPUs and 0 GPUs on 2 "
        "nodes (launch.ray); add nodes, start fewer processes, or lower what each takes in launch.ray."
    ),
    "ray.env_server_gpus=1": "the Ray cluster must have 2 CPUs and 1 GPUs for 2 processes, ",
    "ray.env_server_cpus=3.5": "the Ray cluster must have 4.5 CPUs and 0 GPUs for 2 processes, each on one node, got 6",
}


class Observer(Callback):
    """Sees what runs when the first step ends, and then kills a node if there is a victim."""

    def __init__(self, nodes: RayNodes) -> None:
        self.nodes, self.actors, self.pids = nodes, dict[str, str](), tuple[int, ...]()
        self.victim: Any = None  # a node of Ray

    def on_step(self, step: int, metrics: Metrics) -> None:
        if step > 1:  # a dashboard may be slow to answer while it loses a node
            return
        self.actors = shown_actors(self.nodes)
        self.pids = tuple(state.pid for state in process_states())
        victim, self.victim = self.victim, None
        if victim is not None:
            self.nodes.kill(victim)


def check_nothing_left(observer: Observer) -> None:
    """Wait until every process has ended and the dashboard has noticed that no actor lives."""
    assert all(gone(pid) for pid in observer.pids)
    wait_until(lambda: shown_actors(observer.nodes) == {})


@pytest.fixture(autouse=True, scope="module")
def _needs_ray() -> None:
    pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(num_cpus=3) as nodes:
        nodes.add(3)
        yield nodes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    settings = tiny_settings(tmp_path / "run" / "ray").model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "tiny.yaml"


def refused(file: Path, capsys: pytest.CaptureFixture[str], *launch: str) -> str:
    words = [word for setting in launch for word in ("--set", f"launch.{setting}")]
    assert main(["train", str(file), "--launcher", "ray", *words]) == 2
    assert list((file.parent / "run").iterdir()) == []
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told.removeprefix("envgym: ").rstrip("\n")


def test_without_a_cluster_nothing_begins(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(file, capsys, "env_servers=1")
    assert told.startswith(
        "the Ray cluster at auto must be reached, got Could not find any running Ray instance. Please"
    )
    assert told.endswith("run: ray start --head (and ray start --address=HEAD:6379 on the others), or set it to local.")


def test_run_on_two_nodes_has_the_numbers_of_the_run_on_this_machine(nodes: RayNodes, tmp_path: Path) -> None:
    observer = Observer(nodes)
    train(
        tiny_settings(tmp_path / "ray", launch={**PROCESSES, **nodes.settings(strategy="SPREAD")}),
        callbacks=[observer],
    )
    train(tiny_settings(tmp_path / "local", launch=PROCESSES))
    for placed, local in zip(step_metrics(tmp_path / "ray"), step_metrics(tmp_path / "local"), strict=True):
        assert placed.pop("cost/tokens_prefilled") > 0 < local.pop("cost/tokens_prefilled")
        assert placed == pytest.approx(local, rel=1e-4, abs=1e-6)
    assert set(observer.actors) == {"controller", "learner-1", "policy-server-0", "env-server-0"}
    assert len(set(observer.actors.values())) == 2
    assert len(observer.pids) == 3
    check_nothing_left(observer)
    names = {path.name for path in (tmp_path / "ray").iterdir()}
    assert "weights" not in names
    assert not [name for name in names if name.startswith(".envgym")]


@pytest.mark.timeout(600)  # two runs, each of which starts processes
def test_rollout_workers_on_two_nodes_have_the_numbers_of_the_run_on_this_machine(
    nodes: RayNodes, tmp_path: Path
) -> None:
    observer, engine = Observer(nodes), {"device": "cpu", "max_batch": 1}
    launch = {"servers": 1, "rollout_workers": 2, **nodes.settings(strategy="SPREAD", worker_cpus=1)}
    train(tiny_settings(tmp_path / "ray", launch=launch, engine=engine), callbacks=[observer])
    train(tiny_settings(tmp_path / "local", launch={"servers": 1}, engine=engine))
    for placed, local in zip(step_metrics(tmp_path / "ray"), step_metrics(tmp_path / "local"), strict=True):
        assert placed.pop("cost/tokens_prefilled") > 0 < local.pop("cost/tokens_prefilled")
        assert placed == pytest.approx(local, rel=1e-4, abs=1e-6)
    assert set(observer.actors) == {"controller", "policy-server-0", "rollout-worker-0", "rollout-worker-1"}
    assert len(set(observer.actors.values())) == 2
    check_nothing_left(observer)


@pytest.mark.timeout(600)  # two runs, each of which starts processes on nodes
def test_a_killed_node_ends_the_run_with_one_sentence_and_it_is_resumed(nodes: RayNodes, tmp_path: Path) -> None:
    observer = Observer(nodes)
    observer.victim = victim = nodes.add(3)
    launch = {"env_servers": 2, **nodes.settings(env_server_cpus=3)}  # one on each node but the head
    # Episodes of the node count as invalid if its loss is noticed late; that alone must not end the run.
    settings = tiny_settings(tmp_path / "ray", launch=launch, run={"steps": 500, "max_invalid_rate": 1.0})
    try:
        with pytest.raises(RunError) as raised:
            train(settings, callbacks=[observer])
    finally:
        if observer.victim is not None:  # no step ended: the other tests count the nodes
            nodes.kill(victim)
    assert ", got the loss of its actor on node " in str(raised.value)
    assert str(raised.value).endswith("--resume.")
    assert len(observer.pids) == 2
    check_nothing_left(observer)
    done = len(step_metrics(tmp_path / "ray"))
    launch = {"env_servers": 1, **nodes.settings()}
    resumed = tiny_settings(tmp_path / "ray", launch=launch, run={"steps": done + 1})
    assert train(resumed, resume=True).steps == done + 1


@pytest.mark.parametrize("setting", SENTENCES)
def test_too_few_are_counted(nodes: RayNodes, file: Path, capsys: pytest.CaptureFixture[str], setting: str) -> None:
    told = refused(file, capsys, "env_servers=1", setting, f"ray.address={nodes.address}")
    assert told.startswith(SENTENCES[setting])


def test_a_node_with_another_version_or_another_clock_is_named(
    nodes: RayNodes, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = file.parent
    monkeypatch.chdir(folder)  # where commands find no envgym of their own
    (folder / "late").mkdir()
    (folder / "late" / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() - 60\n")
    (folder / "old" / "envgym").mkdir(parents=True)
    (folder / "old" / "envgym" / "__init__.py").touch()
    (folder / "old" / "envgym" / "__main__.py").write_text("print('envgym 0.0.1')")
    launch = ("env_servers=4", "ray.env_server_cpus=2", f"ray.address={nodes.address}")  # one for each that fits
    for path, told in (
        (f"{folder / 'late'}:{ROOT}", "clock must differ by at most 5 s from the run's, got -"),
        (str(folder / "old"), "envgym must be 0.1.0 on every node, as on the run's own, got 0.0.1 (env-server-"),
    ):
        node = nodes.add(4, PYTHONPATH=path)
        found = refused(file, capsys, *launch)
        nodes.kill(node)
        assert found.startswith(told)


def test_an_unshared_run_directory_is_refused(nodes: RayNodes, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ("servers=6", f"ray.address={nodes.address}")  # one more than fit on the others
    with node_without(str(file.parent / "run"), nodes, num_cpus=1):
        told = refused(file, capsys, *launch)
    unseen = file.parent / "run" / "ray" / ".envgym-shared-"
    assert told.startswith(f"run directory must be shared by all nodes, got no {unseen}")
    assert "policy-server-" in told
