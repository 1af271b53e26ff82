"""A training run that samples with vLLM: trees, episodes of several turns with a tool, an engine that is killed."""

import multiprocessing
from pathlib import Path

import pytest

from envgym.runs.directory import RunDirectory
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

TINY = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}


def settings(directory: Path) -> TrainSettings:
    return train_settings(
        {
            "recipe": "tree_grpo",
            "run": {"directory": str(directory), "steps": 3, "trackers": [], "max_invalid_rate": 1.0},
            "model": {"name": "tiny", "tiny": TINY},
            "engine": {
                "backend": "vllm",
                "device": "cpu",
                "threads": 1,
                "concurrency": 4,
                "cache_gib": 0.1,
                "max_context": 1000,
            },
            "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1, "kinds": ["expression"]}}],
            "agent": {"name": "tool_calling", "max_turn_tokens": 64, "max_context_tokens": 512},
            "sft": {"episodes": 256, "epochs": 3, "batch_size": 8, "lr": 0.005},
            "search": {"name": "random_expand", "trees": 2, "nodes": 2, "rounds": 1},
            "rollout": {"groups": 3, "group_size": 6},
            "filter": {"name": "keep_all"},
            "optim": {"lr": 0.003},
            "objective": {"entropy_coef": 0.01},  # so that every step moves the weights
            "evaluation": {"tasks": 2},
        }
    )


class Killer(Callback):
    """Kills the engine in the middle of a step's sampling."""

    def __init__(self, step: int) -> None:
        self._step, self._seen, self.num_killed = step, 0, 0

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self._seen = step

    def on_progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        if phase == "collect" and self._seen == self._step - 1 and not self.num_killed:
            for child in multiprocessing.active_children():
                child.kill()
                self.num_killed += 1


def test_a_run_with_trees_and_tools_goes_on_when_its_engine_is_killed(tmp_path: Path) -> None:
    killer = Killer(step=2)
    result = train(settings(tmp_path / "run"), callbacks=[killer])
    rows = {int(row["step"]): row for row in RunDirectory.open(result.directory).metrics()}
    assert (result.steps, sorted(rows), killer.num_killed > 0) == (3, [0, 1, 2, 3], True)
    for step in (1, 2, 3):
        assert (rows[step]["rollout/groups"], rows[step]["rollout/episodes"]) == (3, 18)
        assert rows[step]["canary/gap"] < 1e-2
        assert rows[step]["canary/moved"] > 1e-3
    assert [rows[step]["rollout/invalid"] > 0 for step in (1, 2, 3)] == [False, True, False]
    assert rows[1]["rollout/turns"] > 1.2
    assert rows[1]["rollout/tool_calls"] > 0.2
    for child in multiprocessing.active_children():
        child.join(timeout=60)  # it was told to end, and may not have been reaped yet
    assert not multiprocessing.active_children()
