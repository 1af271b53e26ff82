"""The runs that `benchmarks.plan` measures: an environment with replies of known length, and what a run takes."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

from benchmarks._processor import heap_overhead
from envgym import Env, Reply, Task
from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tree import Tree
from envgym.trainer.metrics.callbacks import LEARN, Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.planning.workload import Workload
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train

_REPLY: Final = "Go on, and say more about the same thing."
_PROMPT: Final = "Say something about the number {number}, in one sentence that you have not said before."
SMALLEST: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 2,
    "intermediate_size": 64,
}
"""A model whose tensors are nothing beside the libraries."""


class RunShape(NamedTuple):
    """What differs between the runs."""

    width: int
    layers: int
    turns: int
    """Of an episode."""
    groups: int
    launch: Mapping[str, Any]
    """The section `launch`."""


RUNS: Final[Mapping[str, RunShape]] = {
    "one process, 1 turn": RunShape(384, 6, 1, 4, {}),
    "one process, 4 turns": RunShape(256, 8, 4, 2, {}),
    "two ranks, 2 turns": RunShape(384, 6, 2, 4, {"learners": 2}),
    "policy server, 3 turns": RunShape(320, 6, 3, 2, {"servers": 1}),
}


class Talk(Env[int]):
    """Give the same reply in every turn; the reward alternates with the length of the last message."""

    tasks = ListTasks([TaskDraft(prompt=_PROMPT.format(number=n), payload={"number": n}) for n in range(64)])

    def __init__(self, *, turns: int = 2) -> None:
        super().__init__()
        self.turns = turns

    def begin(self, task: Task) -> str:
        self.state = 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.state += 1
        return Reply(observation=_REPLY, reward=float(len(action) % 2), terminated=self.state == self.turns)


def settings_of(name: str, steps: int, folder: Path, *, smallest: bool = False) -> TrainSettings:
    """Return the settings of a run; `smallest` replaces its model by one without a size."""
    width, layers, turns, groups, launch = RUNS[name]
    heads = width // 32 if width % 64 else width // 64
    shape = {
        "hidden_size": width,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "intermediate_size": 3 * width,
    }
    return train_settings(
        {
            "run": {
                "directory": str(folder),
                "steps": steps,
                "trackers": [],
                "journal": False,
                "save_episodes_every": 0,
            },
            "model": {"name": "tiny", "precision": "float32", "tiny": dict(SMALLEST) if smallest else shape},
            "engine": {"threads": 1, "device": "cpu"},
            "agent": {"name": "plain", "max_turn_tokens": 32, "max_context_tokens": 1024, "on_length": "close"},
            "envs": [{"id": "benchmarks._plan_runs:Talk", "settings": {"turns": turns}}],
            "rollout": {"groups": groups, "group_size": 4},
            "optim": {"micro_batch_tokens": 1024},
            "filter": {"name": "keep_all"},
            "evaluation": {"tasks": 1},
            "launch": dict(launch),
        }
    )


class Recorder(Callback):
    """Keeps the processor time of the processes of a run at the marks of its steps, and their largest memory."""

    def __init__(self) -> None:
        self.workloads = list[Workload]()
        self.marks = list[Mapping[str, float]]()
        """Of each step three: when learning begins, when it ends, and the end of the step."""
        self.peaks = dict[str, int]()

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if phase == LEARN and done in (0, total):
            self._mark()

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        self.workloads.append(Workload.of(trees))

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._mark()
        self.peaks = {role: peak_bytes(process.pid) for role, process in processes().items()}

    def _mark(self) -> None:
        times = {role: float(sum(process.cpu_times()[:2])) for role, process in processes().items()}
        self.marks.append({**times, "run": time.process_time(), "wall": time.perf_counter()})

    def step_seconds(self) -> list[float]:
        """Return the processor time of each step but the first, along its critical path.

        The run's process and the policy server wait for each other, so that their times add up. While ranks learn, the
        slower one counts.
        """
        ends, seconds = self.marks[2::3], []
        for number, (early, late) in enumerate(pairwise(ends), start=1):
            begins, learned = self.marks[3 * number : 3 * number + 2]
            step_s = late["run"] - early["run"] + late.get("server", 0.0) - early.get("server", 0.0)
            of_ranks = [learned[role] - begins[role] for role in ("run", "rank") if role in late]
            seconds.append(step_s + max(of_ranks) - of_ranks[0])
        return seconds

    def wall_seconds(self) -> list[float]:
        """Return the wall time of each step but the first."""
        return [late["wall"] - early["wall"] for early, late in pairwise(self.marks[2::3])]


def processes() -> dict[str, psutil.Process]:
    """Return the processes of the run that compute, by their role."""
    roles = {"run": psutil.Process()}
    for child in psutil.Process().children(recursive=True):
        command = " ".join(child.cmdline())
        roles |= {role: child for role, mark in _MARKS.items() if mark in command}
    return roles


_MARKS: Final = {"rank": "--meeting", "server": "--max-batch"}
"""Role -> an argument of its command."""


def peak_bytes(pid: int) -> int:
    """Return the most main memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def play(name: str, steps: int, *, smallest: bool) -> dict[str, Any]:
    """Run a run, and return what it took as plain JSON types."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(name, steps, Path(folder) / "run", smallest=smallest)
        train(settings, callbacks=[recorder])
    return {
        "seconds": recorder.step_seconds(),
        "wall": recorder.wall_seconds(),
        "peaks": recorder.peaks,
        "workload": asdict(recorder.workloads[-1]),
        "heap_overhead": heap_overhead() if smallest else None,
    }


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], int(sys.argv[2]), smallest=sys.argv[3] == "smallest")))
