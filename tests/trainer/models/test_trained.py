"""Models that learn beside the policy: they score, learn, are kept, and a resumed run goes on with them."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.core.trajectory import Group
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.models.implicit_prm import ImplicitPrm
from envgym.trainer.phases import dry_runs
from envgym.trainer.run import RunContext, prepare_models
from envgym.trainer.train import train
from tests.support.tiny_runs import sampled_groups, step_metrics, tiny_settings

PRM = {"prm": {"kind": {"name": "implicit_prm", "lr": 0.001}}}
ISTAR: dict[str, Any] = {
    "models": PRM,
    "annotate": [{"name": "turn_scores", "model": "prm"}],
    "credit": {"name": "istar"},
}


def begun(directory: Path, **sections: Any) -> tuple[RunContext, list[Group]]:
    settings = tiny_settings(directory, **sections)
    context = build_run_context(settings)
    prepare_models(context, directory)
    return context, sampled_groups(context, settings)


def test_rewards_begin_at_zero_and_learn_which_episodes_are_preferred(tmp_path: Path) -> None:
    context, groups = begun(tmp_path, models=PRM)
    model = context.models["prm"]
    assert isinstance(model, ImplicitPrm)
    episodes = [episode for group in groups for episode in group.valid]
    before = asyncio.run(model.score_turns(episodes))
    # it is a copy of the policy, so every log-ratio is 0
    assert max(abs(value) for of in before for value in of) < 1e-5
    assert [len(of) for of in before] == [len(episode.turns) for episode in episodes]
    policy = [parameter.clone() for parameter in context.learner.parameters]
    accuracies = [model.train_step(groups, step=step)["accuracy"] for step in range(8)]
    assert accuracies[-1] > 0.9
    assert all(torch.equal(old, new) for old, new in zip(policy, context.learner.parameters, strict=True))
    # what it prefers now earns more: the sum over an episode's turns goes with its reward
    after = asyncio.run(model.score_turns(groups[0].valid))
    rewards = [episode.reward.value for episode in groups[0].valid]  # type: ignore[union-attr]  # all are valid
    best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
    assert sum(after[best]) > sum(after[worst])


def test_model_trains_beside_the_policy_and_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    chosen = tiny_settings(tmp_path / "run", **ISTAR)
    train(chosen)
    before = step_metrics(tmp_path / "run")
    assert before[0]["models/prm/loss"] > 0
    assert before[1]["annotate/prm_count"] == 16  # eight episodes of two turns
    assert before[1]["annotate/prm_mean"] != 0
    last = RunDirectory.open(tmp_path / "run").checkpoints / "step-000002"
    weights = (last / "parts" / "model_prm" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(last)
    train(chosen, resume=True)
    assert step_metrics(tmp_path / "run") == before
    assert (last / "parts" / "model_prm" / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("kind", ["implicit_prm", "utterance_critic", "reward_model"])
def test_dry_run_asks_a_model_that_has_not_begun(kind: str, tmp_path: Path) -> None:
    annotator = {"name": "process_reward" if kind == "reward_model" else "turn_scores", "model": "prm"}
    found = dry_runs([tiny_settings(tmp_path, models={"prm": {"kind": kind}}, annotate=[annotator])])[0]
    values = [item.value for group in found.batch.groups for tree in group.trees for item in tree.annotations]
    assert len(values) == 16  # eight episodes of two turns
    assert None not in values


@pytest.mark.parametrize(
    "kind, rates",
    [
        ("implicit_prm", "models.own.kind.lr"),
        ("reward_model", "models.own.kind.lr or models.own.kind.head_lr"),
        ("utterance_critic", "models.own.kind.lr"),
    ],
)
def test_update_that_overflows_names_the_learning_rates_of_the_model(kind: str, rates: str, tmp_path: Path) -> None:
    context, groups = begun(tmp_path, models={"own": {"kind": kind}})
    model: Any = context.models["own"]
    module = model.network if kind == "utterance_critic" else model.learner.model
    with torch.no_grad():
        next(module.parameters()).fill_(torch.nan)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.raises(InvalidInput, match=rf"be finite, got nan \(learner\); lower {re.escape(rates)}, or look at"):
        model.train_step(groups, step=0)
    pairs = zip(before, module.parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in pairs if not old.isnan().any())


def test_copy_of_a_policy_with_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="copy of the policy must hold all weights, got adapters"):
        build_run_context(tiny_settings(tmp_path, models=PRM, model={"lora": {"rank": 2}}))


def test_scores_of_a_model_that_is_missing_or_scores_no_turns_are_refused(tmp_path: Path) -> None:
    asked = [{"name": "turn_scores", "model": "prn"}]
    with pytest.raises(UnknownName, match="did you mean prm"):
        build_run_context(tiny_settings(tmp_path, models=PRM, annotate=asked))
    frozen = {"prn": {"kind": "snapshot"}}
    with pytest.raises(SettingsError, match="model prn must have score_turns, got snapshot"):
        build_run_context(tiny_settings(tmp_path, models=frozen, annotate=asked))
