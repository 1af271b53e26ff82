"""A run whose tasks are known in several words: its states come together, on packs and on rows alike."""

from pathlib import Path
from typing import Any

import pytest

from envgym.episodes import trees_of
from envgym.runs import RunDirectory
from envgym.trainer.train import train
from tests.support.tiny_runs import step_metrics, tiny_settings

WORDS = {"xml": "<task>{task}</task>", "prose": "You are asked this.\n{task}\nNow act."}
SECTIONS: dict[str, Any] = {
    "curriculum": {"name": "reworded", "prompts": WORDS},
    "objective": {"terms": [{"name": "states", "loss": {"name": "contrastive", "prompts": ["xml", "prose"]}}]},
    "rollout": {"groups": 3, "group_size": 2},
    "optim": {"lr": 0.01},
    "run": {"steps": 3},
}


def test_states_of_one_task_come_together(tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", **SECTIONS))
    steps = step_metrics(tmp_path / "run")
    assert [step["train/rows"] for step in steps] == [6.0] * 3, "rows in other words train nothing"
    assert steps[0]["loss/states"] > 0.5
    same, other = ([step[f"loss/states/distance_{which}"] for step in steps] for which in ("same", "other"))
    assert same[2] < 0.5 * same[0]
    assert other[2] - same[2] > 2 * (other[0] - same[0]) > 0
    trees = [tree for tree in trees_of(RunDirectory.open(tmp_path / "run").episodes([1])) if tree.split == "train"]
    assert len({tree.task_key for tree in trees}) == 3
    for tree in trees:
        own = tuple(token for segment in tree.nodes[0].edge.segments for token in segment.token_ids)
        assert len({own, *tree.prompts.values()}) == 3
    padded = {**SECTIONS, "optim": {"lr": 0.01, "packing": False}, "run": {"steps": 1}}
    train(tiny_settings(tmp_path / "padded", **padded))
    (first,) = step_metrics(tmp_path / "padded")
    for name in ("loss/states", "loss/states/distance_same", "loss/states/distance_other", "optim/grad_norm"):
        assert first[name] == pytest.approx(steps[0][name], rel=1e-4)
