"""Demonstrations beside the episodes of a step: drawn by the seed, declared to the audit, read by their terms alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.core.segments import Origin
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Source
from envgym.errors import RunError, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.rows import TrainRow, pad, train_rows
from envgym.trainer.method import Method, build_method
from envgym.trainer.methods.credit.outcome import episode_credits
from envgym.trainer.methods.scores import Quantity
from envgym.trainer.settings import train_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.demonstration_pool import DemonstrationPool, demonstration_rows
from tests.support.example_trees import branch_after_a_tool_call, outcome_tree
from tests.support.tiny_runs import StopAfter

EPISODES = [trajectories(outcome_tree(f"tree {number}", 1.0))[0] for number in range(6)]


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
    run = train_settings(settings(Path("runs/none"), demonstrations={"per_step": 4}))
    assert run.demonstrations is not None
    pool = DemonstrationPool(run.demonstrations, seed=run.run.seed, success_at=1.0, curriculum=run.curriculum)
    pool.hold(episodes)
    return pool


def places(
    rows: Sequence[TrainRow], quantities: Mapping[str, Collection[Quantity]]
) -> dict[tuple[str, Quantity], list[list[float]]]:
    numbers = [[float(place * scored) for place, scored in enumerate(row.scored_mask)] for row in rows]
    return {(model, quantity): numbers for model, asked in quantities.items() for quantity in asked}


def method_of(**sections: Any) -> Method:
    return build_method(train_settings(settings(Path("runs/none"), **sections)))


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
    rows = demonstration_rows(EPISODES[2:4], method_of(), places, after=of_step)
    assert [row.id.episode for row in of_step + rows] == [0, 1, 2, 3]
    assert {row.id.group for row in of_step}.isdisjoint(row.id.group for row in rows)
    assert [row.advantages for row in rows] == [(0.0,) * len(row) for row in rows]


def test_a_term_reads_and_counts_the_same_tokens_of_demonstrations() -> None:
    """After the prompt: two sampled tokens, four of a call's answer of which two are the tool's, two sampled."""
    episode = trajectories(replace(branch_after_a_tool_call(), source=Source.DEMONSTRATION))[0]
    terms = [
        {"name": "tools", "loss": "self_distillation", "origins": ["TOOL"], "sources": ["DEMONSTRATION"]},
        {"name": "both", "loss": "nll", "origins": ["POLICY", "TOOL"], "sources": ["DEMONSTRATION"]},
        {"name": "sampled", "loss": {"name": "self_distillation", "model": "reference"}},
    ]
    method = method_of(objective={"terms": terms}, curriculum={"name": "hinted", "keep_as": "skill"})
    (row,) = demonstration_rows([episode], method, places, after=[])
    batch = pad([row], [0], torch.device("cpu"))
    origins = row.id.origins(len(row))
    read = {term.name: term.mask(batch)[0].nonzero()[:, 0].tolist() for term in method.objective.terms}
    assert [len(read[term.name]) for term in method.objective.terms] == [
        term.denominator([row]).tokens for term in method.objective.terms
    ]
    assert [origins[place] for place in read["tools"]] == [Origin.TOOL] * 2
    assert [origins[place] for place in read["both"]] == [Origin.POLICY] * 2 + [Origin.TOOL] * 2 + [Origin.POLICY] * 2
    assert [row.scores["policy with skill"][place] for place in read["both"]] == read["both"]
    assert row.scores["reference with skill"] == (0.0,) * len(row), "no term reads it here"


def test_a_teacher_that_is_the_policy_is_no_distance_from_it_on_demonstrations(tmp_path: Path) -> None:
    loss = {"name": "self_distillation", "model": "reference"}
    distillation = {"name": "distillation", "loss": loss, "sources": ["DEMONSTRATION"]}
    own = {"name": "own", "loss": loss}
    chosen = settings(tmp_path / "run", objective={"terms": [distillation, own]}, optim={"micro_batch_tokens": 1})
    train(train_settings(chosen))
    first, *_ = [row for row in RunDirectory.open(tmp_path / "run").metrics() if row["step"]]
    assert first["loss/distillation"] == pytest.approx(0.0, abs=1e-9)
    assert first["loss/own"] == pytest.approx(0.0, abs=1e-9)


def test_a_mixture_trains_and_resumes(tmp_path: Path) -> None:
    train(train_settings(settings(tmp_path / "whole")))
    whole = RunDirectory.open(tmp_path / "whole").metrics()
    steps = [row for row in whole if row["step"]]
    assert [row["coef/imitation"] for row in steps] == pytest.approx([0.9, 0.775520])
    assert [row["coef/policy"] for row in steps] == pytest.approx([0.1, 0.224480], abs=1e-5)
    assert all(row["loss/imitation"] > 0 and row["train/rows"] == 4 + 3 for row in steps)
    chosen = train_settings(settings(tmp_path / "cut"))
    with pytest.raises(KeyboardInterrupt):
        train(chosen, callbacks=[StopAfter()])
    train(chosen, resume=True)
    again = RunDirectory.open(tmp_path / "cut").metrics()
    assert [row["loss/imitation"] for row in again if row["step"]] == [row["loss/imitation"] for row in steps]


def memory(folder: Path, env: str, **term: Any) -> list[dict[str, float]]:
    """Train with a term on what tools and the env said; return the metrics of the steps."""
    terms = [{"name": "memory", "loss": {"name": "nll", "min_reward": 0.0}, "coef": 0.1, "origins": ["TOOL"], **term}]
    agent = {"max_turn_tokens": 4, "max_context_tokens": 512, "on_length": "close"}
    changes = {"objective": {"terms": terms}, "demonstrations": None, "agent": agent, "envs": [{"id": env}]}
    train(train_settings(settings(folder, **changes)))
    return [row for row in RunDirectory.open(folder).metrics() if row["step"]]


def test_what_a_tool_said_can_be_memorised(tmp_path: Path) -> None:
    assert all(row["loss/memory"] > 0 for row in memory(tmp_path / "run", "tests.support.tiny_runs:EvenWords"))


def test_a_term_whose_tokens_never_come_stops_the_run_unless_it_says_why(tmp_path: Path) -> None:
    """An env of one turn never replies, so that there is no token of it to memorise."""
    with pytest.raises(
        RunError, match="objective term memory must read some token of the first rows of POLICY, REPLAY"
    ):
        memory(tmp_path / "refused", "tests.support.graded:Lucky")
    rows = memory(tmp_path / "run", "tests.support.graded:Lucky", may_be_empty="the env replies seldom")
    assert [row["optim/updates"] for row in rows] == [1.0, 1.0]


def test_demonstrations_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="demonstrations must be used with a term of the objective that reads them"):
        train_settings(settings(tmp_path, objective={}))
