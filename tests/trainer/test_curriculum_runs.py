"""Every curriculum that learns, and every allocator, trains the tiny model."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.core.tree import Source
from envgym.episodes import trees_of
from envgym.runs import RunDirectory
from tests.support.graded import LUCKY, train_steps

COUNTER = {"id": "tests.support.toys:Counter", "settings": {"max_turns": 2}}
"""Its episodes take two turns, so that they have a state to go on from."""
RUNS: dict[str, dict[str, Any]] = {
    "dump": {"curriculum": {"name": "dump"}},
    "bots": {"curriculum": {"name": "bots"}},
    "ada_rft": {"curriculum": {"name": "ada_rft"}},
    "sgpo": {"curriculum": {"name": "sgpo", "samples": 2}},
    "no_positive_resampling": {"curriculum": {"name": "no_positive_resampling"}},
    "hinted": {"curriculum": {"name": "hinted", "share": 0.5, "keep_as": "skill"}},
    "sub_goals": {"curriculum": {"name": "sub_goals"}},
    "r3": {"curriculum": {"name": "r3", "success_at": 0.0, "form": "staged"}, "envs": [COUNTER]},
    "ex_it": {"curriculum": {"name": "ex_it", "least": 1, "probability": 1.0}, "envs": [COUNTER]},
    "scaf_grpo": {"allocator": {"name": "scaf_grpo", "warmup_steps": 0}},
    "solved_prefix": {"shaping": {"name": "solved_prefix"}, "credit": {"name": "scrl"}},
}
STATELESS = {"no_positive_resampling", "hinted", "scaf_grpo", "solved_prefix"}


@pytest.mark.parametrize("name", RUNS)
def test_curriculum_trains(name: str, tmp_path: Path) -> None:
    first, second = train_steps(tmp_path, **RUNS[name])
    assert first["optim/updates"] == second["optim/updates"] == 2.0
    assert first["train/rows"] == 4.0
    assert any(key.startswith("curriculum/") for key in second) == (name not in STATELESS)


def test_guide_trains_hinted_episodes_behind_the_plain_context(tmp_path: Path) -> None:
    rows = train_steps(
        tmp_path,
        env=LUCKY,
        allocator={"name": "guide"},
        loss={"name": "guide"},
        rollout={"groups": 8, "group_size": 2},
        filter={"name": "zero_variance"},
    )
    trees = [tree for tree in trees_of(RunDirectory.open(tmp_path).episodes()) if tree.id.startswith("step-")]
    hinted = [tree for tree in trees if tree.source is Source.REPLAY]
    assert hinted  # one answer of four is paid, so that some groups fail, and hinted ones differ
    assert all("hinted" in tree.prompts for tree in hinted)
    assert all(row["optim/updates"] == 2.0 and math.isfinite(row["loss/policy"]) for row in rows)


@pytest.mark.parametrize("name", ["r3", "ex_it"])
def test_second_step_goes_on_from_states_of_the_first(name: str, tmp_path: Path) -> None:
    train_steps(tmp_path, **RUNS[name])
    trees = trees_of(RunDirectory.open(tmp_path).episodes())
    assert any(tree.prefix is not None and tree.prefix.tree_id.startswith("step-000001") for tree in trees)
