"""How well `envgym plan` predicts: four runs of one process on this processor, predicted and measured.

Run: python -m benchmarks.plan [--steps 3]. Prints one JSON line: for each run the predicted and the measured seconds of
a train step, and the predicted and the measured bytes. The constants of the processor are measured first. All times are
processor time of one thread, which other programs disturb less than wall time. The untrained policy talks to an
environment that always gives the same reply; the lengths of its episodes are counted, not predicted.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from benchmarks._options import print_result, read_options
from benchmarks._processor import measure_processor
from envgym import Env, Reply, Task
from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tree import Tree
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.method import build_method
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.planning.constants import Device, control
from envgym.trainer.planning.predict import Plan, Workload, predict
from envgym.trainer.planning.shapes import model_shape
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.dry_run import dry_run

MEMORY: Final = 16e9
WIDE: Final[Mapping[str, Any]] = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 8, "intermediate_size": 768}
RUNS: Final[Mapping[str, tuple[Mapping[str, Any], int]]] = {
    "4 layers of 128, 2 turns": ({}, 2),
    "4 layers of 128, 8 turns": ({}, 8),
    "4 layers of 256, 4 turns": (WIDE, 4),
    "8 layers of 256, 2 turns": ({**WIDE, "num_layers": 8}, 2),
}
"""Name -> shape of the tiny model, and turns of an episode."""
_REPLY: Final = "Go on, say more."


class Talk(Env[int]):
    """Give the same reply in every turn; the reward alternates with the length of the last message."""

    tasks = ListTasks(
        [TaskDraft(prompt=f"Say something about {number}.", payload={"number": number}) for number in range(64)]
    )

    def __init__(self, *, turns: int = 2) -> None:
        super().__init__()
        self.turns = turns

    def begin(self, task: Task) -> str:
        self.state = 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.state += 1
        return Reply(observation=_REPLY, reward=float(len(action) % 2), terminated=self.state == self.turns)


class Recorder(Callback):
    """Keeps the processor time of every step, and the lengths of its episodes."""

    def __init__(self) -> None:
        self.times, self.workloads = list[float](), list[Workload]()

    def on_episodes(self, step: int, trees: Sequence[Tree]) -> None:
        self.workloads.append(workload_of(trees))

    def on_step(self, step: int, metrics: Metrics) -> None:
        self.times.append(time.process_time())


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


def settings_of(tiny: Mapping[str, Any], turns: int, steps: int, folder: Path) -> TrainSettings:
    return train_settings(
        {
            "run": {
                "directory": str(folder),
                "steps": steps,
                "trackers": [],
                "journal": False,
                "save_episodes_every": 0,
            },
            "model": {"name": "tiny", "precision": "float32", "tiny": dict(tiny)},
            "engine": {"threads": 1, "device": "cpu"},
            "agent": {"name": "plain", "max_turn_tokens": 32, "max_context_tokens": 1024, "on_length": "close"},
            "envs": [
                {
                    "id": f"{__name__ if __name__ != '__main__' else 'benchmarks.plan'}:Talk",
                    "settings": {"turns": turns},
                }
            ],
            "rollout": {"groups": 4, "group_size": 8},
            "optim": {"micro_batch_tokens": 2048},
            "filter": {"name": "keep_all"},
            "evaluation": {"tasks": 1},
            "canary": {"enabled": False},
        }
    )


def predicted(settings: TrainSettings, workload: Workload, device: Device) -> Plan:
    shape = model_shape(settings.model, settings.optim, size=None, has_reference=False, device_type="cpu")
    return predict(settings, workload, shape, device, control(), build_method(settings, warns=False).objective)


def measure(name: str, device: Device, steps: int) -> dict[str, float]:
    """Return predicted and measured seconds and bytes of a run."""
    tiny, turns = RUNS[name]
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(tiny, turns, steps + 1, Path(folder) / "run")
        train(settings, callbacks=[recorder])
        context = build_run_context(settings_of(tiny, turns, 1, Path(folder) / "dry"))
        cost = dry_run(context, collect_plan(context, settings), None).cost
    assert cost is not None, "the filter keeps every group"
    plan = predicted(settings, recorder.workloads[-1], device)
    seconds = median(late - early for early, late in zip(recorder.times, recorder.times[1:], strict=False))
    parts = {name: size for name, size in plan.learner_memory.items() if name != "cache"}
    return {
        "predicted_s": plan.step_s,
        "measured_s": seconds,
        "time_ratio": plan.step_s / seconds,
        "predicted_bytes": sum(parts.values()),
        "measured_bytes": cost.memory,
        "memory_ratio": sum(parts.values()) / cost.memory,
    }


def main() -> None:
    options = read_options(__doc__, steps=3)
    device = replace(measure_processor(MEMORY, threads=1, clock=time.process_time), name="cpu")
    runs = {name: measure(name, device, options.steps) for name in RUNS}
    print_result("plan", device={"train_gflops": device.train_flops / 1e9}, runs=runs)


if __name__ == "__main__":
    main()
