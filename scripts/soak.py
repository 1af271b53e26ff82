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
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
from scipy.stats import linregress  # type: ignore[import-untyped]  # as above

from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.process import ProcessSpec
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
ENV_SETTINGS: Final = {"level": 1, "kinds": ["expression"]}


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
        super().__init__(env, RATES, seed=0)


def train(words: list[str], folder: Path, read: Callable[[subprocess.Popen[bytes]], Readings]) -> Readings:
    """Train in a process with its log and temporary files in the folder; return what was read until its end.

    Raises: RunError: it failed.
    """
    (folder / "run-tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "run-tmp")}
    command = [sys.executable, "-m", "envgym", *words]
    with (
        (folder / "run.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment) as process,
    ):
        try:
            by_step = read(process)
        finally:
            process.terminate()
    if process.returncode:
        raise RunError(f"the run ended with {process.returncode}: {folder / 'run.log'}")
    return by_step


def open_sessions(url: str) -> float:
    """Return how many sessions an environment server has."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
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
    """Return the resources of a process and its children at this moment."""
    family = [process, *process.children(recursive=True)]
    sockets = sum(len(one.net_connections(kind="all")) for one in family)
    return {
        "threads": sum(one.num_threads() for one in family),
        "sockets": sockets,
        "files": sum(one.num_fds() for one in family) - sockets,
        "memory": sum(one.memory_info().rss for one in family) / MIB,
    }


def reading(processes: Mapping[str, psutil.Process], run: Path, url: str) -> dict[str, float]:
    """Return the resources of all processes, by process and kind."""
    values = {f"{name}/{kind}": amount for name, one in processes.items() for kind, amount in held_by(one).items()}
    values["processes"] = sum(1 + len(one.children(recursive=True)) for one in processes.values())
    values["sessions"] = open_sessions(url)
    values["disk/kept"] = sum(size_mib(run / folder) for folder in KEPT)
    return values | {"disk/all": size_mib(run)}


def readings(run: Path, process: subprocess.Popen[bytes], servers: Mapping[str, psutil.Process], url: str) -> Readings:
    """Return the readings by step, one after each step until the run is over."""
    by_step: Readings = {}
    processes = {"run": psutil.Process(process.pid), **servers}
    while process.poll() is None:
        with suppress(psutil.Error, OSError, ValueError):  # the run begins, or ends; what is left out is counted
            step = max(int(row["step"]) for row in RunDirectory.open(run).metrics())
            if step and step not in by_step:
                by_step[step] = reading(processes, run, url)
        time.sleep(0.2)
    return by_step


def slopes(by_step: Readings, steps: int) -> dict[str, Slope]:
    """Return by how much each reading grows per step, over the second half of the steps."""
    late = [step for step in sorted(by_step) if step > steps / 2]
    of_name = {name: linregress(late, [by_step[step][name] for step in late]) for name in by_step[late[0]]}
    return {name: Slope(float(line.slope), float(line.stderr)) for name, line in of_name.items()}


def faults_of(by_step: Readings, growth: Mapping[str, Slope]) -> list[str]:
    """Return which readings grow by more than they may (slopes less two standard errors), or are above their limit."""
    problems = list[str]()
    for name, slope in growth.items():
        kind, peak = name.rpartition("/")[2], max(of_step[name] for of_step in by_step.values())
        if slope.least > GROWTH.get(kind, float("inf")):
            problems.append(f"{name} grows by {slope.value:.3f} per step")
        if peak > MOST.get(kind, float("inf")):
            problems.append(f"{name} reaches {peak:.0f}, and may be {MOST[kind]}")
    return problems


def left(folder: Path, servers: Mapping[str, psutil.Process], before: Mapping[str, Any], url: str) -> list[str]:
    """Return the leftovers of a run, after the servers have detected its end."""
    until = time.monotonic() + WAIT_S
    while (remaining := _left_now(folder, servers, before, url)) and time.monotonic() < until:
        time.sleep(0.5)
    return remaining


def _left_now(folder: Path, servers: Mapping[str, psutil.Process], before: Mapping[str, Any], url: str) -> list[str]:
    sessions = open_sessions(url)
    problems = [f"{sessions:.0f} sessions are left"] if sessions else []
    for name, server in servers.items():
        after = held_by(server)
        for kind, more in AT_REST.items():
            if after[kind] > before[name][kind] + more:
                problems.append(f"{name} has {after[kind]:.0f} {kind}, before the run {before[name][kind]:.0f}")
    ours = [
        path for path in (folder / "run-tmp").iterdir() if not path.name.startswith("torchinductor_")
    ]  # torch's cache
    return problems + [f"{path} is left" for path in ours]


def invalid_share(rows: list[dict[str, Any]]) -> float:
    """Return the share of episodes without a reward."""
    invalid, valid = (sum(row[f"rollout/{name}"] for row in rows) for name in ("invalid", "episodes"))
    return float(invalid / (invalid + valid))


def words_of(options: argparse.Namespace, run: Path, urls: Mapping[str, str]) -> list[str]:
    """Return the words of the command that trains: the settings file, what this script needs, then `--set`."""
    env = {"id": ENV_ID, "settings": ENV_SETTINGS, "wrappers": [f"{__file__}:FaultyEnv"], "servers": [urls["env"]]}
    backend = {"name": "policy_servers", "servers": [urls["policy"]], "weights": str(run / "weights")}
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
    run = folder / "run"
    specs = (
        ProcessSpec("policy", ("policy-server", options.model, "--engine", "transformers", "--port", "0")),
        ProcessSpec("env", ("serve", ENV_ID, "--port", "0", "--accept", f"{ENV_ID}={json.dumps(ENV_SETTINGS)}")),
    )
    with Processes(folder, run="soak", resume="none") as processes:
        processes.start(specs)
        urls = {role: str(entry["url"]) for role, entry in processes.wait_ready(timeout_s=WAIT_S).items()}
        servers = {state.role: psutil.Process(state.pid) for state in processes.states()}
        before = {name: held_by(server) for name, server in servers.items()}
        try:
            words = words_of(options, run, urls)
            by_step = train(words, folder, lambda process: readings(run, process, servers, urls["env"]))
        except RunError as error:
            print(error, file=sys.stderr)
            return 1
        faults = left(folder, servers, before, urls["env"])
    least = math.ceil(SHARE * options.steps)
    if len(by_step) < least:
        print(f"{least} steps must be read, got {len(by_step)}: {folder}", file=sys.stderr)
        return 1
    growth = slopes(by_step, options.steps)
    faults += faults_of(by_step, growth) + [f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - shared]
    if options.out is not None:
        options.out.write_text(json.dumps(by_step))
    rows = [row for row in RunDirectory.open(run).metrics() if row["step"]]
    report: dict[str, object] = {
        "steps": len(rows),
        "readings": len(by_step),
        "invalid_share": round(invalid_share(rows), 3),
    }
    report |= {"updates": sum("staleness/max" in row for row in rows)}
    report |= {"staleness_max": max(row.get("staleness/max", 0) for row in rows), "faults": faults}
    print(json.dumps(report | {"growth_per_step": {name: round(slope.value, 4) for name, slope in growth.items()}}))
    if not faults:
        shutil.rmtree(folder)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
