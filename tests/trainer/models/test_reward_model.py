"""A reward model: its loss by hand and by differences, what it learns, and that it is kept."""

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envgym.core.pairs import Pair
from envgym.core.trajectory import Group
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.rows import scored_row
from envgym.trainer.build import build_run_context
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import CriticSettings, OptimSettings
from envgym.trainer.methods.annotators.process_reward import turn_prefixes
from envgym.trainer.methods.credit.outcome import episode_rewards
from envgym.trainer.models.reward_model import RewardModel, preference_loss
from envgym.trainer.run import RunContext, prepare_models
from envgym.trainer.train import train
from tests.support.differences import slopes_along
from tests.support.tiny_runs import sampled_groups, step_metrics, tiny_settings
from tests.trainer.learner.packing.forest import CPU, assert_close, build

REWARD: dict[str, Any] = {"models": {"reward": {"kind": {"name": "reward_model", "lr": 0.001}}}}
ROWS = [scored_row((*ids, 0), first=len(ids)) for ids in ((5, 6, 7), (5, 6, 8), (5, 9), (5, 6, 7, 8))]
PAIRS = [Pair(0, 1, 1.0), Pair(3, 1, 1.0), Pair(3, 2, 0.5)]


def small(**optim: Any) -> Learner:
    """Return a learner of an exact model of width 16 whose head says something."""
    model, settings = build(), OptimSettings(**optim)
    critic = Critic(model, CriticSettings(detach=False), settings, device=CPU)
    with torch.no_grad():
        critic.head.weight_D.copy_(torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return Learner(model, optim=settings, num_steps=1, device=CPU, critic=critic)


def weights_of(learner: Learner) -> list[Tensor]:
    assert learner.critic is not None
    return [*learner.parameters, *learner.critic.head.parameters()]


def mean_loss(learner: Learner) -> float:
    margins_P, _ = preference_loss(learner, ROWS, learner.micro_batches(ROWS, range(4)), PAIRS)
    return sum(math.log1p(math.exp(-margin)) for margin in margins_P.tolist()) / 3


def gradient_of(learner: Learner) -> list[Tensor]:
    """Return the gradient that an update accumulates, over all micro-batches."""
    batches = learner.micro_batches(ROWS, range(4))
    _, loss_fn = preference_loss(learner, ROWS, batches, PAIRS)
    loss = torch.stack([loss_fn(batch) for batch in batches]).sum()
    return list(torch.autograd.grad(loss, weights_of(learner), materialize_grads=True))


def test_margins_by_hand() -> None:
    learner = small()
    assert learner.critic is not None
    values = learner.compute_values(ROWS, learner.micro_batches(ROWS, range(4)))
    rewards = [values[number, len(row) - 1].item() for number, row in enumerate(ROWS)]
    margins_P, _ = preference_loss(learner, ROWS, learner.micro_batches(ROWS, range(4)), PAIRS)
    assert margins_P.tolist() == pytest.approx([rewards[c] - rewards[r] for c, r, _ in PAIRS], abs=1e-12)
    # a head of 0 prefers nothing: log 2 for every pair
    torch.nn.init.zeros_(learner.critic.head.weight_D)
    assert mean_loss(learner) == pytest.approx(math.log(2))


def test_gradient_agrees_with_differences_in_one_batch_and_in_several() -> None:
    learner = small()
    gradients = gradient_of(learner)
    for pieces in (small(micro_batch_tokens=4), small(packing=False, micro_batch_tokens=8)):
        for ours, whole in zip(gradient_of(pieces), gradients, strict=True):
            assert_close(ours, whole)
    found = slopes_along(lambda: mean_loss(learner), weights_of(learner), gradients)
    assert found.by_difference == pytest.approx(found.by_gradient, rel=1e-5)
    assert abs(found.by_gradient) > 1e-4


def begun(directory: Path) -> tuple[RunContext, RewardModel, list[Group]]:
    settings = tiny_settings(directory, **REWARD)
    context = build_run_context(settings)
    prepare_models(context, directory)
    model = context.models["reward"]
    assert isinstance(model, RewardModel)
    return context, model, sampled_groups(context, settings)


def test_it_learns_what_is_preferred_and_leaves_the_policy(tmp_path: Path) -> None:
    context, model, groups = begun(tmp_path)
    policy = [parameter.clone() for parameter in context.learner.parameters]
    learned = [model.train_step(groups, step=step) for step in range(30)]
    assert learned[0]["loss"] == pytest.approx(math.log(2))
    assert learned[0]["accuracy"] == 0.0  # a margin of 0 is no preference
    assert learned[-1]["accuracy"] > 0.9
    assert learned[-1]["loss"] < 0.4
    assert all(torch.equal(old, new) for old, new in zip(policy, context.learner.parameters, strict=True))
    # and it says so of conversations, however they are asked for
    prefixes = [turn_prefixes(episode)[-1].token_ids for episode in groups[0].valid]
    values = asyncio.run(model.compute_values(prefixes, [True] * len(prefixes)))
    alone = [asyncio.run(model.compute_values([prefix], [False]))[0] for prefix in prefixes]
    assert values == pytest.approx(alone, abs=1e-5)
    rewards = episode_rewards(groups[0])
    best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
    assert values[best] > values[worst]
    assert asyncio.run(model.compute_values([], [])) == []


def test_step_without_a_preference_changes_nothing(tmp_path: Path) -> None:
    _, model, groups = begun(tmp_path)
    (group, *_) = groups
    alike = Group(key=group.key, trees=group.trees[:1])
    before = [parameter.clone() for parameter in model.learner.parameters]
    assert model.train_step([alike], step=0) == {"pairs": 0.0}
    assert model.train_step([], step=0) == {"pairs": 0.0}
    assert all(torch.equal(old, new) for old, new in zip(before, model.learner.parameters, strict=True))


def test_it_trains_beside_the_policy_scores_turns_and_resumes(tmp_path: Path) -> None:
    scored = {"annotate": [{"name": "process_reward", "model": "reward"}]}
    chosen = tiny_settings(tmp_path, **REWARD, **scored)
    train(chosen)
    before = step_metrics(tmp_path)
    assert before[0]["models/reward/pairs"] > 0
    assert before[0]["annotate/process_mean"] == 0.0
    assert before[1]["annotate/process_mean"] != 0.0
    last = RunDirectory.open(tmp_path).checkpoints / "step-000002"
    head = (last / "parts" / "model_reward" / "critic.pt").read_bytes()
    shutil.rmtree(last)
    train(chosen, resume=True)
    assert step_metrics(tmp_path) == before
    assert (last / "parts" / "model_reward" / "critic.pt").read_bytes() == head
