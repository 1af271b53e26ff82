"""Runs on planned trees: with and without a critic, and where their next trees should branch."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.runs import RunDirectory
from envgym.trainer.methods.tree_plans import TreePlan, measure_moments
from envgym.trainer.train import train
from scripts.plan_trees import groups_of, report, settings_of
from tests.support.tiny_runs import step_metrics, tiny_settings

PLANNED: dict[str, Any] = {
    "search": {"name": "planned", "turns": [1]},
    "loss": {"name": "reinforce"},
    "objective": {"aggregation": "seq-mean-token-sum", "shared_tokens": "once"},
}


@pytest.mark.parametrize("credit", [{"name": "planned"}, {"name": "planned_gae", "decay": 1.0, "beta": "fitted"}])
def test_planned_trees_train_every_node_once(credit: dict[str, Any], tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", credit=credit, **PLANNED))
    rows = RunDirectory.open(tmp_path / "run").episodes(label="train")
    for metrics in step_metrics(tmp_path / "run"):
        assert metrics["optim/grad_norm"] > 0
        assert math.isfinite(metrics["loss/policy"])
        assert metrics["train/rows"] == 8.0
    groups = groups_of(rows)
    assert [len(group.trees) for group in groups] == [2] * 4
    assert [len(group.valid) for group in groups] == [4] * 4
    for group in groups:
        for tree in group.trees:
            (branching,) = {node.parent for node in tree.nodes if sum(n.parent == node.parent for n in tree.nodes) > 1}
            assert branching is not None
            assert len(tree.path(branching)) == 2  # below the first turn
    moments = measure_moments(groups)
    assert moments.costs.shape == (2,)
    assert report(moments, most_leaves=4).splitlines()[1] in {
        "search.name=chain rollout.group_size=4",
        "search.name=planned search.trees=2 search.turns=[1] search.children=[2] rollout.group_size=4",
    }


def test_plans_are_written_as_settings() -> None:
    expected = "search.name=planned search.trees=3 search.turns=[2,6] search.children=[2,3] rollout.group_size=18"
    assert settings_of(TreePlan(3, (2, 6), (2, 3))) == expected
    assert settings_of(TreePlan(6)) == "search.name=chain rollout.group_size=6"
