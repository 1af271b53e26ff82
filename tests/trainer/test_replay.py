"""Runs that replay: what joins trains and is declared, and a resumed run goes on with the same buffer."""

import shutil
from pathlib import Path

import pytest

from envgym.episodes import episode_rows
from envgym.errors import SettingsError, UnknownName
from envgym.runs import RunDirectory
from envgym.trainer.method import build_method
from envgym.trainer.train import train
from tests.support.example_trees import outcome_tree
from tests.support.tiny_runs import step_metrics, tiny_settings

RLEP = {"name": "rlep", "draws": 2, "success_at": 0.5}


def test_replayed_episodes_train_and_a_resumed_run_replays_the_same(tmp_path: Path) -> None:
    chosen = tiny_settings(tmp_path / "run", replay=RLEP, run={"steps": 4})
    train(chosen)
    before = step_metrics(tmp_path / "run")
    assert before[0]["replay/episodes"] == 0.0
    assert before[-1]["replay/episodes"] > 0
    assert all(row["train/rows"] == 8 + row["replay/episodes"] for row in before)
    assert all(row["rollout/episodes"] == 8 for row in before)  # what is replayed was not sampled
    assert all(row.get("replay/reward", 1.0) >= 0.5 for row in before)
    shutil.rmtree(RunDirectory.open(tmp_path / "run").checkpoints / "step-000004")
    train(chosen, resume=True)
    assert step_metrics(tmp_path / "run") == before


def test_pool_of_another_tokenizer_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recorded = RunDirectory.create(tmp_path / "other", name="other", config={})
    recorded.write_episodes(1, episode_rows([outcome_tree("t", 1.0)], step=1))  # token 1 is "<1>" there
    chosen = tiny_settings(tmp_path / "run", replay={"name": "rlep", "directory": str(recorded.path)})
    with pytest.raises(SettingsError, match="recorded episodes must hold tokens of this model's vocabulary, got id 1"):
        train(chosen)
    assert not (tmp_path / "run").exists()


def test_deep_search_plays_a_solved_hard_prompt_directly(tmp_path: Path) -> None:
    # success_at .5 and a share of 1/2: of four episodes at most two are right, so half of the prompts are hard
    recipe = {"recipe": "deep_search_replay", "rollout": {"groups": 4, "group_size": 4}, "run": {"steps": 4}}
    replay = {"name": "solutions", "hard_below": 0.75, "success_at": 1.0, "direct_share": 0.5}
    search = {"name": "mcts", "simulations": 4, "rule": "uct", "frontier": True, "backup": "decayed"}
    train(tiny_settings(tmp_path / "run", replay=replay, search=search, **recipe))
    rows = step_metrics(tmp_path / "run")
    assert rows[0]["replay/episodes"] == 0.0
    replayed = [row for row in rows if row["replay/episodes"] > 0]
    assert replayed
    for row in replayed:
        assert row["replay/reward"] == 1.0
        assert row["rollout/episodes"] < 16  # fewer are sampled than the four groups of four that were asked for
        assert row["rollout/episodes"] + row["replay/episodes"] <= 16


def test_unknown_replay_lists_near_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean rlep"):
        build_method(tiny_settings(tmp_path, replay="rlpe"))
