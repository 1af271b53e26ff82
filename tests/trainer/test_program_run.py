"""Training runs whose episodes an agent program plays."""

from pathlib import Path
from typing import Any

import pytest

from envgym.core.trajectory import trajectories
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.train import train
from tests.agents.rollout.programs import sample_programs
from tests.support.tiny_runs import step_metrics, tiny_settings

PROGRAM = {"run": f"{sample_programs.__name__}:count_even", "reward": "result"}


def run(directory: Path, **sections: Any) -> list[dict[str, float]]:
    agent = {"name": "tool_calling", "program": PROGRAM, **sections.pop("agent", {})}
    train(tiny_settings(directory, agent=agent, **sections))
    return step_metrics(directory)


def test_a_program_with_helpers_is_trained_and_its_log_probs_are_those_of_the_learner(tmp_path: Path) -> None:
    first, second = run(tmp_path, canary={"on_rewrite": "fail"}, evaluation={"tasks": 2})
    for row in (first, second):
        assert (row["conversations/mean"], row["conversations/max"]) == (2.0, 2.0)
        assert row["context_rewrites/turns"] == 0.0
        assert (row["program/crashes"], row["program/ignored_options"], row["program/rows_per_turn"]) == (
            0.0,
            0.0,
            2 / 3,
        )
        assert row["program/malformed_calls"] >= 0.0  # an untrained model writes anything
        assert not any(name.startswith("annotate/") for name in row)
        assert row["rows/collected"] == 2 * 8  # two groups of four episodes of two rows
    # on the weights that sampled, the learner computes for every row what the sampler recorded
    assert first["logprob_gap/max_abs"] < 1e-4
    trees = trees_of(RunDirectory.open(tmp_path).episodes(label="train"))
    assert {len(episode.turns) for tree in trees for episode in trajectories(tree)} == {3}


def test_a_method_that_gives_hints_is_refused_with_a_program(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="curriculum must leave prompts and start states as they are"):
        run(tmp_path, curriculum={"name": "hinted"})
