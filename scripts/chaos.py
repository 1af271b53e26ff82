"""Runs of which one process is killed by SIGKILL at a random moment: each must go on or resume, and lose nothing.

Run: python scripts/chaos.py [--runs 20] [--seed 0] [--config examples/demo.yaml] [--set KEY=VALUE ...] [--steps 8]

A reference run is trained without a kill; the others begin with its weights after the warm start, where there is one,
and have otherwise the same settings. In each of them one process dies, the roles in turn, at a random moment of
training; a run that ends is resumed. Then it must hold that every step was recorded once, that its episodes are the
valid ones and the invalid ones by cause, that none without a reward has an advantage, that what the journal held at the
death was not sampled again, that no process is left, and that the success on held-out tasks is at least the reference's
less `--points`. Prints one line of JSON a run and one at the end; where something did not hold, the runs are kept and
the exit code is 1. `recovery_s` is the seconds from the death to the next group that was trained (or dropped by the
filter): with a server that was started again and has joined, or by the resumed run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from envgym.runs.directory import RunDirectory
from envgym.runs.files import LOGS

ROLES: Final = ("policy-server-0", "env-server-0", "learner-1", "controller")
WAIT_S: Final = 900.0
_JOURNAL: Final = "journal"


class ChaosRun:
    """One run in a directory, in processes of its own."""

    def __init__(self, directory: Path, options: argparse.Namespace, *, reference: "ChaosRun | None" = None) -> None:
        """Name it, and whose weights after the warm start it begins with; nothing is started."""
        self.directory, self.options, self._reference = directory, options, reference
        self._process: subprocess.Popen[bytes] | None = None
        self.num_starts = 0

    def start(self) -> None:
        """Begin, or go on."""
        options = self.options
        words = ["train", options.config, "--set", f"run.directory={self.directory}", "--set", "run.name=chaos"]
        words += ["--set", f"run.steps={options.steps}", "--set", "run.checkpoint_every=1"]
        words += ["--set", "run.save_episodes_every=1", "--set", f"run.keep_checkpoints={options.steps + 1}"]
        words += ["--learners", "2", "--servers", "1", "--env-servers", "1"]
        words += [word for change in options.set for word in ("--set", change)]
        if self._reference is not None:
            warm = self._reference.directory / "checkpoints" / "step-000000" / "model"
            words += ["--set", f"model={{name: {warm}}}", "--set", "sft=null"]
        if self.num_starts:
            words = ["train", str(self.directory), "--resume"]
        self.num_starts += 1
        log = self.directory.with_suffix(".log").open("ab")
        command = [sys.executable, "-m", "envgym", *words]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        assert self._process is not None, "it was started"
        return self._process.wait(timeout=WAIT_S)

    @property
    def has_ended(self) -> bool:
        """Whether the process of the run is over."""
        return self._process is not None and self._process.poll() is not None

    def pids(self) -> dict[str, int]:
        """Return the newest process of each role."""
        assert self._process is not None, "it was started"
        processes = {"controller": self._process.pid}
        processes |= {entry["process"]: int(entry["pid"]) for entry in self.events() if entry.get("event") == "start"}
        return processes

    def events(self) -> list[dict[str, Any]]:
        """Return the log of the run's own process, as far as it is written."""
        file = self.directory / LOGS / "controller.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def recovery_s(self, killed: float, role: str) -> float | None:
        """Return the seconds from the death of a role to the next group that was trained; None: none was."""
        ends = ("trained", "dropped")
        moment, stages = killed, [("restart",), ("join",), ends] if "server" in role else [ends]
        for entry in self.events():
            logged = datetime.fromisoformat(entry["time"]).timestamp()
            if stages and entry.get("event") in stages[0] and logged > moment:
                moment = logged
                del stages[0]
        return None if stages else round(moment - killed, 1)

    def steps(self) -> list[dict[str, Any]]:
        """Return the metrics of its train steps."""
        try:
            return [row for row in RunDirectory.open(self.directory).metrics() if row["step"]]
        except Exception:  # noqa: BLE001  # it is being written
            return []

    def wait_for_steps(self, count: int) -> None:
        """Wait until so many steps are recorded. Raises: TimeoutError, RuntimeError: they never are."""
        until = time.monotonic() + WAIT_S
        while len(self.steps()) < count:
            if self.has_ended:
                raise RuntimeError(f"{self.directory} ended before step {count}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self.directory} has not made step {count}")
            time.sleep(0.2)

    def journaled(self) -> int:
        """Return how many turns its journal holds that a resumed run may use: those of the newest checkpoint."""
        saved = sorted((self.directory / "checkpoints").glob("step-*"))
        if not saved:
            return 0
        file = self.directory / _JOURNAL / f"turns-{int(saved[-1].name.removeprefix('step-')):08d}.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def success(self) -> float:
        """Return the success of the last evaluation."""
        rewards = RunDirectory.open(self.directory).evals()[-1]["rewards"].values()
        values = [reward for of_task in rewards for reward in of_task]
        return float(sum(reward is not None and reward >= 1 for reward in values) / len(values))


def faults(
    run: ChaosRun, reference: float, pids: set[int], expected_reuse: int, options: argparse.Namespace
) -> list[str]:
    """Return the failed checks of a run that is over."""
    problems = list[str]()
    steps = run.steps()
    if [row["step"] for row in steps] != list(range(1, options.steps + 1)):
        problems.append(f"steps {[row['step'] for row in steps]}")
    num_episodes = steps[0]["rollout/episodes"] + steps[0]["rollout/invalid"]
    for row in steps:
        by_cause = sum(value for name, value in row.items() if name.startswith("invalid/"))
        if row["rollout/episodes"] + row["rollout/invalid"] != num_episodes or by_cause != row["rollout/invalid"]:
            problems.append(f"step {row['step']}: {row['rollout/episodes']} valid, {row['rollout/invalid']} invalid")
    directory = RunDirectory.open(run.directory)
    for episode in directory.episodes(directory.episode_steps(), label="train"):
        if episode["reward"] is None and episode["advantages"] is not None:
            problems.append(f"an episode without reward trained: {episode.get('id')}")
    reused = sum(row.get("journal/turns", 0) for row in steps)
    if reused != expected_reuse:
        problems.append(f"{reused} turns came from the journal, which held {expected_reuse}")
    problems += [f"process {pid} is left" for pid in pids if Path(f"/proc/{pid}").exists()]
    if run.success() < reference - options.points / 100:
        problems.append(f"success {run.success():.3f}, the reference {reference:.3f}")
    return problems


def one_run(directory: Path, role: str, reference: ChaosRun, draw: random.Random) -> list[str]:
    """Make one run, kill its process of a role, and return what did not hold."""
    options = reference.options
    run = ChaosRun(directory, options, reference=reference)
    run.start()
    step, delay = draw.randrange(1, options.steps), draw.uniform(0, options.delay)
    run.wait_for_steps(step)
    time.sleep(delay)
    pids = run.pids()
    killed = time.time()
    with suppress(ProcessLookupError):  # it may be over
        os.kill(pids[role], signal.SIGKILL)
    seen, code, reused = set(pids.values()), run.wait(), 0
    while code and run.num_starts < 3:
        reused += run.journaled()
        run.start()
        code = run.wait()
        seen |= set(run.pids().values())
    problems = [f"exit code {code}"] if code else faults(run, reference.success(), seen, reused, options)
    report = {
        "run": directory.name,
        "role": role,
        "after_step": step,
        "delay_s": round(delay, 2),
        "starts": run.num_starts,
        "recovery_s": run.recovery_s(killed, role),
    }
    counts = {name: sum(row.get(name, 0) for row in run.steps()) for name in ("processes/restarts", "requests/retried")}
    report |= counts | {"journal_turns": reused, "faults": problems}
    print(json.dumps(report), flush=True)
    return problems


def main() -> int:
    """Make all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", default="examples/demo.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the settings; repeatable")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--reference", type=Path, help="a run of these settings that is over: none is trained first")
    parser.add_argument("--delay", type=float, default=10.0, help="longest time from a step to the kill, seconds")
    parser.add_argument("--points", type=float, default=7.0, help="success that a run may lose")
    options = parser.parse_args()
    folder, draw = Path(tempfile.mkdtemp(prefix="envgym-chaos-")), random.Random(options.seed)
    reference = ChaosRun(options.reference or folder / "reference", options)
    if options.reference is None:
        reference.start()
        if code := reference.wait():
            print(f"the reference run ended with {code}: {folder / 'reference.log'}", file=sys.stderr)
            return 1
    roles = [ROLES[number % len(ROLES)] for number in range(options.runs)]
    failed = sum(bool(one_run(folder / f"run-{n}", role, reference, draw)) for n, role in enumerate(roles))
    report = {"chaos": options.runs, "failed": failed, "reference_success": round(reference.success(), 3)}
    if failed:
        report |= {"kept": str(folder)}
    else:
        shutil.rmtree(folder)
    print(json.dumps(report))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
