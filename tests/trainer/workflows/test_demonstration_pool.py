"""Demonstrations beside the episodes of a step: drawn by the seed, declared to the audit, read by their terms alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.runs import RunDirectory
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.methods.credit.outcome import episode_credits
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.demonstration_pool import DemonstrationPool, demonstration_rows
from tests.support.example_trees import outcome_tree

EPISODES = [trajectories(outcome_tree(f"tree {number}", 1.0))[0] for number in range(6)]


class StopAfterOneStep(Callback):
    """Breaks a run off."""

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Stop."""
        del step, metrics
        raise KeyboardInterrupt


def settings(directory: Path, **changes: Any) -> dict[str, Any]:
    """Return a run of seconds, half of whose objective imitates the oracle."""
    mixture = {"name": "cosine", "peak": 0.9, "valley": 0.05, "decay": 4}
    return {
        "run": {"name": "chord", "directory": str(directory), "steps": 2, "trackers": [], "checkpoint_every": 1},
        "model": {"name": "tiny", "tiny": {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}},
        "engine": {"device": "cpu"},
        "agent": {"max_turn_tokens": 16, "max_context_tokens": 512},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1, "kinds": ["expression"]}}],
        "rollout": {"groups": 2, "group_size": 2},
        "filter": {"name": "keep_all"},
        "optim": {"lr": 0.001},
        "demonstrations": {"episodes": 4, "per_step": 3},
        "objective": {
            "policy_coef": {**mixture, "complement": True},
            "terms": [{"name": "imitation", "loss": "chord", "coef": mixture, "sources": ["DEMONSTRATION"]}],
        },
        "evaluation": {"tasks": 1},
        **changes,
    }


def pool_of(episodes: Sequence[Trajectory]) -> DemonstrationPool:
    """Return a pool of which a step draws four."""
    pool = DemonstrationPool(train_settings(settings(Path("runs/none"), demonstrations={"per_step": 4})))
    pool.hold(episodes)
    return pool


def test_a_step_draws_its_episodes_by_the_seed_and_never_one_twice() -> None:
    pool, again, few = pool_of(EPISODES), pool_of(EPISODES), pool_of(EPISODES[:2])
    drawn = [[episode.tree.id for episode in pool.draw(step)] for step in (1, 2, 1)]
    assert drawn[0] == drawn[2] == [episode.tree.id for episode in again.draw(1)]
    assert drawn[0] != drawn[1]
    assert all(len(set(names)) == 4 for names in drawn)
    assert {episode.tree.source for episode in pool.draw(1)} == {Source.DEMONSTRATION}
    assert len(few.draw(1)) == 2
    with pytest.raises(SettingsError, match="demonstrations must have successful episodes, got none"):
        pool_of([])


def test_rows_are_numbered_after_those_of_the_step() -> None:
    of_step = train_rows(episode_credits(EPISODES[:2], [1.0, -1.0]), once=False)
    rows = demonstration_rows(EPISODES[2:4], after=of_step)
    assert [row.id.episode for row in of_step + rows] == [0, 1, 2, 3]
    assert {row.id.group for row in of_step}.isdisjoint(row.id.group for row in rows)
    assert [row.advantages for row in rows] == [(0.0,) * len(row) for row in rows]


def test_a_mixture_trains_and_resumes(tmp_path: Path) -> None:
    train(train_settings(settings(tmp_path / "whole")))
    whole = RunDirectory.open(tmp_path / "whole").metrics()
    steps = [row for row in whole if row["step"]]
    assert [row["coef/imitation"] for row in steps] == pytest.approx([0.9, 0.775520])
    assert [row["coef/policy"] for row in steps] == pytest.approx([0.1, 0.224480], abs=1e-5)
    assert all(row["loss/imitation"] > 0 and row["train/rows"] == 4 + 3 for row in steps)
    chosen = train_settings(settings(tmp_path / "cut"))
    with pytest.raises(KeyboardInterrupt):
        train(chosen, callbacks=[StopAfterOneStep()])
    train(chosen, resume=True)
    again = RunDirectory.open(tmp_path / "cut").metrics()
    assert [row["loss/imitation"] for row in again if row["step"]] == [row["loss/imitation"] for row in steps]


def test_what_a_tool_said_can_be_memorised(tmp_path: Path) -> None:
    term = {"name": "memory", "loss": {"name": "nll", "min_reward": 1.0}, "coef": 0.1, "origins": ["TOOL"]}
    changes: dict[str, Any] = {"objective": {"terms": [term]}, "demonstrations": None}
    train(train_settings(settings(tmp_path / "run", **changes)))
    assert all("loss/memory" in row for row in RunDirectory.open(tmp_path / "run").metrics() if row["step"])


def test_demonstrations_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="demonstrations must be used with a term of the objective that reads them"):
        train_settings(settings(tmp_path, objective={}))
