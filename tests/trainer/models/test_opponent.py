"""Self-play: two trained sides of a game, an opponent that is the policy as it was, seats that cannot be taken."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym import Message, Role, Scored
from envgym.core.trajectory import trajectories
from envgym.errors import PartyFailure, SettingsError, UnknownName
from envgym.party import Player
from envgym.trainer.build import build_run_context
from envgym.trainer.methods.corrections import Tis
from envgym.trainer.models.opponent import Game, ModelParty, Opponent
from envgym.trainer.run import RunContext, prepare_models
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from tests.support.tiny_runs import StopAfter, sampled_groups, step_metrics, tiny_settings

DUEL = "tests.support.tiny_runs:EvenDuel"
SEAT = "envgym.trainer.models.opponent:ModelParty"


def game(directory: Path, opponent: Mapping[str, Any], **sections: Any) -> TrainSettings:
    """Return a run of a game of two against a model of the run."""
    return tiny_settings(
        directory,
        **{
            "envs": [{"id": DUEL, "parties": {"opponent": {"name": SEAT, "model": "other"}}}],
            "models": {"other": {"kind": {"name": "opponent", **opponent}}},
            "rollout": {"groups": 2, "group_size": 8},
            **sections,
        },
    )


def begun(settings: TrainSettings, folder: Path) -> tuple[RunContext, Opponent]:
    context = build_run_context(settings)
    prepare_models(context, folder)
    other = context.models["other"]
    assert isinstance(other, Opponent)
    return context, other


def test_opponent_learns_from_its_own_tokens_and_what_its_seat_was_paid(tmp_path: Path) -> None:
    settings = game(tmp_path, {"lr": 0.01})
    context, other = begun(settings, tmp_path)
    groups = sampled_groups(context, settings)
    games = dict(other._games)
    paid = sorted(reward for record in games.values() for _, reward, _ in record.finished)
    earned = sorted(item.reward.value for group in groups for item in group.valid)  # type: ignore[union-attr]  # valid
    assert paid == sorted(1 - reward for reward in earned)  # a game of two: one side's gain is the other's loss
    of, record = next(iter(games.items()))
    tree, *_ = other._trees(of, record)
    (episode,) = trajectories(tree)
    assert [len(turn.segments) for turn in episode.turns] == [1, 1 + len(episode.rows[1].segments) - 1]
    assert len(episode.rows) == 2  # its context is rendered anew before every move
    assert episode.reward == Scored(value=min(record.finished, key=lambda item: item[:2])[1])
    policy = [parameter.clone() for parameter in context.learner.parameters]
    before = [parameter.clone() for parameter in other.learner.parameters]
    metrics = other.train_step(groups, step=0)
    assert metrics["episodes"] == len(earned)
    assert metrics["reward"] == pytest.approx(sum(paid) / len(paid))
    assert all(torch.equal(old, new) for old, new in zip(policy, context.learner.parameters, strict=True))
    moved = any(not torch.equal(old, new) for old, new in zip(before, other.learner.parameters, strict=True))
    assert moved
    assert metrics["grad_norm"] > 0
    assert other.train_step(groups, step=1)["episodes"] == 0  # every game is learned from once


@pytest.mark.parametrize("staleness", [0, 1])
def test_both_sides_train_and_a_resumed_run_goes_on_with_both(tmp_path: Path, staleness: int) -> None:
    rollout = {"groups": 2, "group_size": 8, "staleness": staleness}
    chosen = game(tmp_path / "run", {"lr": 0.001}, rollout=rollout)
    train(game(tmp_path / "whole", {"lr": 0.001}, rollout=rollout))
    before = step_metrics(tmp_path / "whole")
    for row in before:
        assert row["models/other/episodes"] == 16
        assert row["models/other/reward"] == pytest.approx(1 - row["reward/mean"])
    with pytest.raises(KeyboardInterrupt):
        train(chosen, callbacks=[StopAfter()])
    train(chosen, resume=True)
    # the env answers from threads, whose timing decides what is sampled together: equal up to rounding
    after = step_metrics(tmp_path / "run")
    for row, again in zip(before, after, strict=True):
        for name in ("reward/mean", "models/other/reward", "rollout/sampled_tokens", "train/trained_tokens"):
            assert again[name] == row[name]
        for name in ("loss/entropy", "models/other/grad_norm", "optim/grad_norm"):
            assert again[name] == pytest.approx(row[name], rel=1e-3, abs=1e-6)


AHEAD: Mapping[str, Any] = {"run": {"steps": 3}, "rollout": {"groups": 2, "group_size": 4, "staleness": 1}}


def test_the_other_side_learns_from_every_episode_in_the_step_that_it_is_sampled_for(tmp_path: Path) -> None:
    for name, rollout in (("in_turn", {"deterministic": True}), ("at_once", {"deterministic": False})):
        chosen = game(tmp_path / name, {"lr": 0.001}, **{**AHEAD, "rollout": {**AHEAD["rollout"], **rollout}})
        train(chosen)
        rows = step_metrics(tmp_path / name)
        assert [row["models/other/episodes"] for row in rows] == [8.0] * 3
        for row in rows:
            assert row["models/other/reward"] == pytest.approx(1 - row["reward/mean"])


def test_moves_of_games_that_go_on_are_kept_with_the_weights(tmp_path: Path) -> None:
    settings = game(tmp_path, {"lr": 0.01}, **AHEAD)
    context, other = begun(settings, tmp_path)
    messages, ahead = (Message(role=Role.USER, content="It said 3 characters."),), Game("task", 7)
    before = other.reply(messages, game=ahead)
    (group,) = sampled_groups(context, game(tmp_path, {}, rollout={"groups": 1, "group_size": 4}))
    other.train_step([group], step=0)
    (tmp_path / "saved").mkdir()
    other.save(tmp_path / "saved")
    context, again = begun(settings, tmp_path)
    again.load(tmp_path / "saved")
    assert set(again._games) == {ahead}
    assert again._games[ahead].moves == other._games[ahead].moves
    assert again.reply(messages, game=ahead) == before
    again.train_step([], step=1)
    assert not again._games, "no step can train it any more"


def test_old_moves_are_corrected_as_the_policys_are(tmp_path: Path) -> None:
    settings = game(tmp_path, {}, correction={"name": "tis"})
    _, other = begun(settings, tmp_path)
    assert isinstance(other._objective.correction, Tis)
    _, other = begun(game(tmp_path, {}, objective={"old_policy": "rollout"}), tmp_path)
    assert other._objective.is_bypass


def test_snapshot_takes_the_policys_weights_every_so_many_steps(tmp_path: Path) -> None:
    settings = game(tmp_path, {"refresh": 2})
    context, other = begun(settings, tmp_path)
    with torch.no_grad():
        for parameter in context.learner.parameters:
            parameter.add_(0.01)
    is_copy = []
    for step in range(2):
        other.train_step([], step=step)
        pairs = zip(context.learner.parameters, other.learner.parameters, strict=True)
        is_copy.append(all(torch.equal(ours, theirs) for ours, theirs in pairs))
    assert is_copy == [False, True]


def test_seats_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    seat = {"opponent": {"name": SEAT, "model": "othr"}}
    with pytest.raises(UnknownName, match="did you mean other"):
        build_run_context(game(tmp_path, {}, envs=[{"id": DUEL, "parties": seat}]))
    with pytest.raises(SettingsError, match="model other must play a seat, got SnapshotModel"):
        build_run_context(game(tmp_path, {}, models={"other": {"kind": "snapshot"}}))
    with pytest.raises(SettingsError, match="refresh must be at least 1, got 0"):
        build_run_context(game(tmp_path, {"refresh": 0}))
    seat_alone = ModelParty("other")
    assert isinstance(seat_alone, Player)
    with pytest.raises(PartyFailure, match="seat must be taken by a model of a training run"):
        seat_alone.reply([Message(role=Role.USER, content="5 stones.")])
