"""Recovery: seconds from the death of a process of a run to the next group of episodes that is over and trained.

Run: python benchmarks/recovery.py [--deaths 3]. Prints one JSON line.

A run of the tiny model with one policy server and one environment server is started; each is killed in turn by SIGKILL
while episodes are under way, and the log of the run tells when it was started again, was used again, and when the next
group was trained. At the end the run itself is killed, which ends the servers, and resumed by --resume, as is done
where a learner rank died.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from envgym.process_log import FOLDER

ROOT: Final = Path(__file__).resolve().parent.parent
ROLES: Final = ("policy-server-0", "env-server-0")
CONTROLLER: Final = "controller"
WAIT_S: Final = 120.0


def settings(restarts: int) -> dict[str, Any]:
    """Return a run that goes on until it is ended."""
    return {
        "run": {"name": "recovery", "directory": "run", "steps": 100_000, "checkpoint_every": 5, "trackers": []},
        "model": {"name": "tiny"},
        "engine": {"device": "cpu", "threads": 1},
        "agent": {"name": "plain", "max_turn_tokens": 8, "max_context_tokens": 512, "on_length": "close"},
        "rollout": {"groups": 2, "group_size": 8},
        "filter": {"name": "keep_all"},
        "evaluation": {"tasks": 1},
        "envs": [{"id": "puzzles/guess_number-v0"}],
        "launch": {"servers": 1, "env_servers": 1, "restarts": restarts},
    }


class RunLog:
    """The log of the run's own process, read as it grows."""

    def __init__(self, file: Path) -> None:
        """Read from the start; the file may not exist yet."""
        self._file, self._place = file, 0
        self.pids: dict[str, int] = {}

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what is new."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._place += len(line)
                entry = json.loads(line)
                if entry.get("event") == "start":
                    self.pids[entry["process"]] = entry["pid"]
                yield entry

    def wait_for(self, event: str, *, after: float) -> float:
        """Return when the next such event happened. Raises: TimeoutError: none does."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for entry in self.entries():
                moment = datetime.fromisoformat(entry["time"]).timestamp()
                if entry.get("event") == event and moment > after:
                    return moment
            time.sleep(0.01)
        raise TimeoutError(f"no {event} within {WAIT_S:g} s")


def recover(log: RunLog, role: str) -> dict[str, float]:
    """Kill a server while episodes are under way; return the seconds until each stage of the recovery."""
    log.wait_for("reset", after=time.time())
    killed = time.time()
    os.kill(log.pids[role], signal.SIGKILL)
    restarted = log.wait_for("restart", after=killed)
    joined = log.wait_for("join", after=restarted)
    trained = log.wait_for("trained", after=joined)
    return {"restart": restarted - killed, "join": joined - killed, "trained": trained - killed}


@contextmanager
def training(folder: Path, *words: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `envgym train` in a folder until the block ends."""
    command = [sys.executable, "-m", "envgym", "train", *words]
    environment, null = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=null, stderr=null) as run:
        try:
            yield run
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)


def resume(folder: Path, log: RunLog, run: "subprocess.Popen[bytes]") -> dict[str, float]:
    """Kill a run while episodes are under way, and resume it; return the seconds until it trains again."""
    log.wait_for("reset", after=time.time())
    killed = time.time()
    run.kill()
    run.wait()
    with training(folder, "run", "--resume"):
        return {"trained": log.wait_for("trained", after=killed) - killed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=3, help="of each role (default: 3)")
    deaths: int = parser.parse_args().deaths
    found: dict[str, list[dict[str, float]]] = {role: [] for role in (*ROLES, CONTROLLER)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.yaml").write_text(yaml.safe_dump(settings(deaths)))
        log = RunLog(folder / "run" / FOLDER / "controller.jsonl")
        with training(folder, "run.yaml") as run:
            log.wait_for("trained", after=0.0)
            for _ in range(deaths):
                for role in ROLES:
                    found[role].append(recover(log, role))
            found[CONTROLLER].append(resume(folder, log, run))
    result = {
        role: {stage: round(median(death[stage] for death in of_role), 2) for stage in of_role[0]}
        for role, of_role in found.items()
    }
    print(json.dumps({"benchmark": "recovery", "deaths": deaths, "median_seconds": result}))


if __name__ == "__main__":
    main()
