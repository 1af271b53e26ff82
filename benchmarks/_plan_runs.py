"""The runs that `benchmarks.plan` measures: an environment with replies of known length, and what a run takes."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

from envgym import Env, Reply, Task
from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tree import Tree
from envgym.trainer.metrics.callbacks import LEARN, Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.planning.predict import Workload
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
RUNS: Final[Mapping[str, tuple[int, int, int, Mapping[str, Any]]]] = {
    "one process, 1 turn": (384, 6, 1, {}),
    "one process, 4 turns": (256, 8, 4, {}),
    "two ranks, 2 turns": (384, 6, 2, {"learners": 2}),
    "policy server, 3 turns": (320, 6, 3, {"servers": 1}),
}
"""Name -> width and layers of the model, turns of an episode, and the section `launch`."""


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
    width, layers, turns, launch = RUNS[name]
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
            "rollout": {"groups": 4, "group_size": 4},
            "optim": {"micro_batch_tokens": 1024},
            "filter": {"name": "keep_all"},
            "evaluation": {"tasks": 1},
            "canary": {"enabled": False},
            "launch": dict(launch),
        }
    )


class Recorder(Callback):
    """Keeps the processor time of the processes of a run at the marks of its steps, and their largest memory."""

    def __init__(self) -> None:
        self.workloads = list[Workload]()
        self.marks = list[tuple[str, dict[str, float]]]()
        self.peaks = dict[str, int]()

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if phase == LEARN and done in (0, total):
            self._mark("learn" if done == 0 else "learned")

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        self.workloads.append(workload_of(trees))

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._mark("step")
        for name, process in _processes().items():
            self.peaks[name] = _peak_bytes(process.pid)

    def _mark(self, name: str) -> None:
        times = {role: sum(process.cpu_times()[:2]) for role, process in _processes().items()}
        self.marks.append((name, {**times, "run": time.process_time(), "wall": time.perf_counter()}))


def _processes() -> dict[str, psutil.Process]:
    """Return the processes of the run by what they do: the command of the others names it."""
    run = psutil.Process()
    return {"run": run} | {" ".join(child.cmdline()[1:])[-60:]: child for child in run.children(recursive=True)}


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def workload_of(trees: Sequence[Tree]) -> Workload:
    """Return the mean lengths of episodes that are chains."""
    prompts = fmean(tree.nodes[0].edge.num_tokens for tree in trees)
    turns = fmean(sum(node.edge.ends_turn for node in tree.nodes) for tree in trees)
    sampled = fmean(tree.cost.tokens_generated for tree in trees)
    context = fmean(sum(node.edge.num_tokens for node in tree.nodes) for tree in trees)
    replies = (context - prompts - sampled) / max(turns - 1, 1)
    return Workload(
        turns=round(turns),
        prompt_tokens=round(prompts),
        turn_tokens=round(sampled / turns),
        reply_tokens=round(replies),
    )


if __name__ == "__main__":
    name, steps, folder, smallest = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "smallest"
    recorder = Recorder()
    module = sys.modules["__main__"].__spec__.name
    settings = settings_of(name, steps, folder / "run", smallest=smallest)
    train(settings, callbacks=[recorder])
    print(
        json.dumps(
            {"marks": recorder.marks, "peaks": recorder.peaks, "work": [str(w) for w in recorder.workloads[-1:]]}
        )
    )
