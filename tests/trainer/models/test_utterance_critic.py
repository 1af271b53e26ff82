"""ArCHer: worked examples of its targets, a critic that learns what its turns are worth, and a run that resumes."""

import asyncio
import shutil
import statistics
from pathlib import Path

import pytest
import torch

from envgym.core.trajectory import trajectories
from envgym.core.turns import Scored
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.models.utterance_critic import TurnValues, UtteranceCritic, _Turns, q_targets, utterance_advantages
from envgym.trainer.run import prepare_models
from envgym.trainer.train import train
from tests.support.credit_trees import chain
from tests.support.tiny_runs import sampled_groups, step_metrics, tiny_settings

CRITIC = {"name": "utterance_critic", "lr": 0.003, "updates": 4, "batch": 8, "discount": 0.9}


def test_targets_and_advantages_by_hand() -> None:
    rewards, is_last = torch.tensor([0.5, 0.5]), torch.tensor([False, True])
    next_v = torch.tensor([[0.8, 9.0], [0.4, 9.0]])
    # .5 + .95 * .8 = 1.26; .5 + .95 * .4 = .88, each head by itself; nothing follows the last turn
    torch.testing.assert_close(
        q_targets(rewards, next_v, is_last, discount=0.95), torch.tensor([[1.26, 0.5], [0.88, 0.5]])
    )
    values = TurnValues(q_2S=torch.tensor([[1.2], [1.0]]), v_2S=torch.tensor([[0.7], [0.9]]))
    assert utterance_advantages(values).tolist() == [pytest.approx(0.3)]


def test_an_utterance_is_seen_at_its_last_token_and_its_state_before_the_first() -> None:
    # prompt 1 2 3 4, then one sampled token a turn
    turns = _Turns.of([*trajectories(chain("a", [0.25, 0.5])), *trajectories(chain("b", [1.0]))])
    assert turns.rows == [(1, 2, 3, 4, 10, 11), (1, 2, 3, 4, 10)]
    assert turns.places == [(0, 3, 4), (0, 4, 5), (1, 3, 4)]
    assert turns.rewards == [0.25, 0.5, 1.0]
    assert turns.is_last == [False, True, True]


def test_critic_learns_what_turns_are_worth_and_keeps_the_policy(tmp_path: Path) -> None:
    chosen = tiny_settings(
        tmp_path,
        models={"critic": {"kind": {**CRITIC, "updates": 60, "polyak": 0.3}}},
        rollout={"group_size": 8},
    )
    context = build_run_context(chosen)
    prepare_models(context, tmp_path)
    critic = context.models["critic"]
    assert isinstance(critic, UtteranceCritic)
    groups = sampled_groups(context, chosen)
    policy = [parameter.clone() for parameter in context.learner.parameters]
    metrics = critic.train_step(groups, step=0)
    # rewards of 0 and .5 leave V an error of 1/16 a head, so that the loss falls to 1/8
    assert metrics["loss_last"] < 0.16
    assert metrics["buffer"] == 16
    episodes = [episode for group in groups for episode in group.valid]
    scores = asyncio.run(critic.score_turns(episodes))
    paid: dict[bool, list[float]] = {True: [], False: []}
    for episode, of_turns in zip(episodes, scores, strict=True):
        for turn, score in zip(episode.turns, of_turns, strict=True):
            assert turn.outcome is not None
            assert isinstance(turn.outcome.reward, Scored)
            paid[turn.outcome.reward.value > 0].append(score)
    # a turn that was paid a half is worth about a half more than one that was not
    assert statistics.fmean(paid[True]) - statistics.fmean(paid[False]) > 0.25
    assert all(torch.equal(old, new) for old, new in zip(policy, context.learner.parameters, strict=True))


def test_target_networks_move_by_their_share_towards_the_others(tmp_path: Path) -> None:
    kind = {**CRITIC, "updates": 1, "polyak": 0.25}
    chosen = tiny_settings(tmp_path, models={"critic": {"kind": kind}})
    context = build_run_context(chosen)
    prepare_models(context, tmp_path)
    critic = context.models["critic"]
    assert isinstance(critic, UtteranceCritic)
    groups = sampled_groups(context, chosen)
    for step in range(2):
        before = [parameter.clone() for parameter in critic._target.parameters()]
        critic.train_step(groups, step=step)
        moved = False
        for old, new, learned in zip(before, critic._target.parameters(), critic.network.parameters(), strict=True):
            torch.testing.assert_close(new, 0.75 * old + 0.25 * learned)
            moved |= not torch.equal(old, new)
        assert moved


def test_archer_trains_after_its_warmup_and_resumes_with_critic_and_buffer(tmp_path: Path) -> None:
    chosen = tiny_settings(
        tmp_path / "run",
        models={"critic": {"kind": CRITIC}},
        annotate=[{"name": "turn_scores", "model": "critic", "warmup": 1}],
        credit={"name": "annotated_turns"},
        loss={"name": "reinforce"},
        objective={"aggregation": "seq-mean-token-sum"},
    )
    train(chosen)
    before = step_metrics(tmp_path / "run")
    assert before[0]["optim/grad_norm"] == 0.0  # the critic alone learns at first
    assert before[1]["optim/grad_norm"] > 0.0
    assert [row["models/critic/buffer"] for row in before] == [8.0, 16.0]
    shutil.rmtree(RunDirectory.open(tmp_path / "run").checkpoints / "step-000002")
    train(chosen, resume=True)
    assert step_metrics(tmp_path / "run") == before
