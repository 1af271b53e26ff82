"""Scores in runs: a teacher with another prompt, a reference without a KL term, and what the dry run makes of them."""

import math
from pathlib import Path

from envgym.episodes import trees_of
from envgym.runs import RunDirectory
from envgym.trainer.train import train
from envgym.trainer.workflows.dry_run import dry_run
from tests.trainer.test_recipes import settings


def test_teacher_reads_the_skill_that_the_policy_never_saw(tmp_path: Path) -> None:
    run = {"name": "skill", "directory": str(tmp_path / "run"), "steps": 1, "trackers": []}
    train(settings("skill_sd", tmp_path, run=run))
    directory = RunDirectory.open(tmp_path / "run")
    (step,) = [row for row in directory.metrics() if "loss/distillation" in row]
    assert step["loss/distillation"] > 1e-6, "the skill changes what the policy would say"
    assert step["coef/distillation"] == 0.001
    trees = [tree for tree in trees_of(directory.episodes([1])) if tree.split == "train"]
    assert len(trees) == 8
    for tree in trees:
        sampled = tuple(token for segment in tree.nodes[0].edge.segments for token in segment.token_ids)
        assert len(tree.prompts["skill"]) > len(sampled)


def test_reference_is_kept_for_a_score_alone(tmp_path: Path) -> None:
    chosen = settings(
        "reinforce_pp",
        tmp_path / "run",
        filter={"name": "keep_all"},
        credit={"name": "reinforce_pp", "baseline": "none", "kl_coef": 0.5},
    )
    assert all(row.train.scores["policy"] == row.train.scores["reference"] for row in dry_run(chosen).shown)
    train(chosen)
    assert (tmp_path / "run" / "reference").is_dir()
    steps = [row for row in RunDirectory.open(tmp_path / "run").metrics() if "optim/grad_norm" in row]
    # no episode is paid and nothing has moved in the first step; in the second the KL term alone has a gradient
    assert steps[0]["optim/grad_norm"] == 0.0
    assert steps[1]["optim/grad_norm"] >= 0.0
    assert all(math.isfinite(row["loss/policy"]) for row in steps)
