"""A long asynchronous run under injected faults: it must leak no process, socket, session, memory or disk.

Run: python scripts/soak.py [--steps 200] [--config examples/demo.yaml] [--model DIR] [--set KEY=VALUE ...] [--out FILE]

A policy server and an environment server run beside a training run that samples ahead of learning (`rollout.stragglers:
window`) with trees, so that sessions fork; every turn is late, and some lose their tools, their env or the end of their
observation (envgym/wrappers/faults.py). What the processes hold is read after each train step; over the second half of
the steps processes, sessions, files, memory and disk may not grow: no slope (least squares) is surely above its limit.
Connections are kept open, as many as were used at a time, so they and threads have a highest number. At the end nothing
may be left, and the servers hold what they held before. Prints one line of JSON; the exit code is 1 where something did
not hold.
"""

import argparse
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
from scipy.stats import linregress  # type: ignore[import-untyped]  # as above

from envgym.runs import RunDirectory
from envgym.wrappers.base import AnyEnv
from envgym.wrappers.faults import FaultRates, Faults

RATES: Final = FaultRates(latency_s=0.05, tool_failure=0.05, infra_failure=0.02, truncation=0.05)
GROWTH: Final = {"processes": 0.01, "sessions": 0.05, "files": 0.02, "memory": 0.25, "kept": 0.05}
"""Reading -> how much it may grow per step; memory and disk in MiB, the latter without what a run writes for good."""
SLOTS: Final = 128
"""Episodes at a time (`engine.concurrency`)."""
MOST: Final = {"sockets": 2 * SLOTS + 64, "threads": SLOTS + 64}
"""Reading -> how many a process may have: an episode has a connection to each server, kept open for the next one, and a
thread where its env is slow."""
KEPT: Final = ("checkpoints", "journal", "weights")
"""Folders of which a run keeps the newest files only."""
SHARE: Final = 0.9
"""Of the steps after which all must have been read."""
AT_REST: Final = {"threads": 8, "files": 4, "sockets": 4}
"""How much more a server may hold after the run than before it: its helpers, and what reads it."""
MIB: Final = 2**20
WAIT_S: Final = 120.0
ENV_ID: Final = "math/arithmetic-v0"


Readings = dict[int, dict[str, float]]
"""Step -> name -> what is held after it."""


class Slope(NamedTuple):
    """By how much a reading grows per step."""

    value: float
    error: float
    """Standard error."""

    @property
    def least(self) -> float:
        """What it surely is at least."""
        return self.value - 2 * self.error


class FaultyEnv(Faults):
    """An environment on a machine and a network that fail at times."""

    def __init__(self, env: AnyEnv) -> None:
        """Wrap `env`."""
        super().__init__(env, RATES, seed=0)


@contextmanager
def started(name: str, words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `envgym` with some words, its log and temporary files in the folder; end it."""
    (folder / f"{name}-tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / f"{name}-tmp")}
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "envgym", *words]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=WAIT_S)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server listens. Raises: TimeoutError: it never does."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"nothing listens at port {port}")


def open_sessions(port: int) -> float:
    """Return how many sessions an environment server has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("envgym_sessions ")]
    return float(line.split()[1])


def size_mib(folder: Path) -> float:
    """Return the size of all files below a folder, of which some may vanish."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total / MIB


def held_by(process: psutil.Process) -> dict[str, float]:
    """Return what a process and its children hold at this moment."""
    family = [process, *process.children(recursive=True)]
    sockets = sum(len(one.net_connections(kind="all")) for one in family)
    return {
        "threads": sum(one.num_threads() for one in family),
        "sockets": sockets,
        "files": sum(one.num_fds() for one in family) - sockets,
        "memory": sum(one.memory_info().rss for one in family) / MIB,
    }


def reading(processes: Mapping[str, psutil.Process], run: Path, port: int) -> dict[str, float]:
    """Return what all hold, by process and kind."""
    told = {f"{name}/{kind}": held for name, one in processes.items() for kind, held in held_by(one).items()}
    told["processes"] = sum(1 + len(one.children(recursive=True)) for one in processes.values())
    told["sessions"] = open_sessions(port)
    told["disk/kept"] = sum(size_mib(run / kept) for kept in KEPT)
    return told | {"disk/all": size_mib(run)}


def readings(run: Path, process: subprocess.Popen[bytes], servers: Mapping[str, psutil.Process], port: int) -> Readings:
    """Return the readings by step, one after each step until the run is over."""
    found: Readings = {}
    processes = {"run": psutil.Process(process.pid), **servers}
    while process.poll() is None:
        with suppress(psutil.Error, OSError, ValueError):  # the run begins, or ends; what is left out is counted
            step = max(int(row["step"]) for row in RunDirectory.open(run).metrics())
            if step and step not in found:
                found[step] = reading(processes, run, port)
        time.sleep(0.2)
    return found


def slopes(found: Readings, steps: int) -> dict[str, Slope]:
    """Return by how much each reading grows per step, over the second half of the steps."""
    late = [step for step in sorted(found) if step > steps / 2]
    of_name = {name: linregress(late, [found[step][name] for step in late]) for name in found[late[0]]}
    return {name: Slope(float(line.slope), float(line.stderr)) for name, line in of_name.items()}


def faults_of(found: Readings, growth: Mapping[str, Slope]) -> list[str]:
    """Return which readings grow by more than they may (slopes less two standard errors), or are above their limit."""
    told = list[str]()
    for name, slope in growth.items():
        kind, peak = name.rpartition("/")[2], max(of_step[name] for of_step in found.values())
        if slope.least > GROWTH.get(kind, float("inf")):
            told.append(f"{name} grows by {slope.value:.3f} per step")
        if peak > MOST.get(kind, float("inf")):
            told.append(f"{name} reaches {peak:.0f}, and may be {MOST[kind]}")
    return told


def left(folder: Path, servers: Mapping[str, psutil.Process], before: Mapping[str, Any], port: int) -> list[str]:
    """Return what the run has left behind, once the servers have seen that it is gone."""
    until = time.monotonic() + WAIT_S
    while (found := _left_now(folder, servers, before, port)) and time.monotonic() < until:
        time.sleep(0.5)
    return found


def _left_now(folder: Path, servers: Mapping[str, psutil.Process], before: Mapping[str, Any], port: int) -> list[str]:
    sessions = open_sessions(port)
    found = [f"{sessions:.0f} sessions are left"] if sessions else []
    for name, server in servers.items():
        after = held_by(server)
        for kind, more in AT_REST.items():
            if after[kind] > before[name][kind] + more:
                found.append(f"{name} has {after[kind]:.0f} {kind}, before the run {before[name][kind]:.0f}")
    ours = [
        path for path in (folder / "run-tmp").iterdir() if not path.name.startswith("torchinductor_")
    ]  # torch's cache
    return found + [f"{path} is left" for path in ours]


def invalid_share(rows: list[dict[str, Any]]) -> float:
    """Return the share of episodes without a reward."""
    invalid, valid = (sum(row[f"rollout/{name}"] for row in rows) for name in ("invalid", "episodes"))
    return float(invalid / (invalid + valid))


def words_of(options: argparse.Namespace, run: Path, policy_port: int, env_port: int) -> list[str]:
    """Return the words of the command that trains: the settings file, what this script needs, then `--set`."""
    env = {"id": ENV_ID, "settings": {"level": 1, "kinds": ["expression"]}, "wrappers": [f"{__file__}:FaultyEnv"]}
    env["servers"] = [f"http://127.0.0.1:{env_port}"]
    backend = {
        "name": "policy_servers",
        "servers": [f"http://127.0.0.1:{policy_port}"],
        "weights": str(run / "weights"),
    }
    changes: dict[str, object] = {
        "model": {"name": options.model},
        "envs": [env],
        "engine.backend": backend,
        "search": {"name": "surprisal_fork", "trees": 4, "nodes": 1, "branches": 1},
        "engine.concurrency": SLOTS,
        "rollout": {"groups": 4, "group_size": 8, "stragglers": "window", "staleness": 2, "deterministic": False},
        "correction.name": "tis",
        "evaluation.tasks": 20,
    }
    if options.model != "tiny":
        changes["sft"] = None
    changes |= {"run.directory": str(run), "run.steps": options.steps, "run.checkpoint_every": 10}
    sets = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    words = ["train", options.config, "--launcher", "static", "--servers", "1", "--env-servers", "1"]
    return words + [word for change in (*sets, *options.set) for word in ("--set", change)]


def main() -> int:
    """Run it, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--config", default="examples/demo.yaml")
    parser.add_argument("--model", default="tiny", help="directory of a model that needs no warm start")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the settings; repeatable")
    parser.add_argument("--out", type=Path, help="file for all readings, by step")
    options = parser.parse_args()
    folder, shared = Path(tempfile.mkdtemp(prefix="envgym-soak-")), set(os.listdir("/dev/shm"))
    run, policy_port, env_port = folder / "run", free_port(), free_port()
    policy_words = ["policy-server", options.model, "--engine", "transformers", "--port", str(policy_port)]
    with (
        started("policy", policy_words, folder) as policy,
        started("env", ["serve", ENV_ID, "--port", str(env_port)], folder) as env,
    ):
        wait_for(policy_port, policy)
        wait_for(env_port, env)
        servers = {"policy": psutil.Process(policy.pid), "env": psutil.Process(env.pid)}
        before = {name: held_by(server) for name, server in servers.items()}
        with started("run", words_of(options, run, policy_port, env_port), folder) as process:
            found = readings(run, process, servers, env_port)
        if process.returncode:
            print(f"the run ended with {process.returncode}: {folder / 'run.log'}", file=sys.stderr)
            return 1
        faults = left(folder, servers, before, env_port)
    least = math.ceil(SHARE * options.steps)
    if len(found) < least:
        print(f"{least} steps must be read, got {len(found)}: {folder}", file=sys.stderr)
        return 1
    growth = slopes(found, options.steps)
    faults += faults_of(found, growth) + [f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - shared]
    if options.out is not None:
        options.out.write_text(json.dumps(found))
    rows = [row for row in RunDirectory.open(run).metrics() if row["step"]]
    told: dict[str, object] = {
        "steps": len(rows),
        "readings": len(found),
        "invalid_share": round(invalid_share(rows), 3),
    }
    told |= {"updates": sum("staleness/max" in row for row in rows)}
    told |= {"staleness_max": max(row.get("staleness/max", 0) for row in rows), "faults": faults}
    print(json.dumps(told | {"growth_per_step": {name: round(slope.value, 4) for name, slope in growth.items()}}))
    if not faults:
        shutil.rmtree(folder)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
