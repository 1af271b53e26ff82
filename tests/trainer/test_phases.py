"""A pipeline of phases: weights go from one to the next, what is done is not done again, TÜLU 3 trains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from envgym.config.plugins import Choice
from envgym.errors import SettingsError, UnknownName
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.learner.checkpoint import require_checkpoint
from envgym.trainer.phases import TULU_3, phase_settings, train_phases, untrained_phases
from envgym.trainer.settings import NamedModelSettings
from tests.support.tiny_runs import step_metrics, tiny_settings

DECONTAMINATION = {"ngram": 5, "share": 0.9}


def shared() -> dict[str, Any]:
    data = tiny_settings(Path("unused"), run={"steps": 1}).model_dump(mode="json", exclude_defaults=True)
    return {**data, "decontamination": DECONTAMINATION, "sft": None}


def small(phase: Any) -> dict[str, Any]:
    """Return a phase of TÜLU 3 in the size of a test."""
    sections = dict(phase)
    if phase["name"] == "sft":
        sections["sft"] = {"episodes": 8, "batch_size": 4}
    sections["rollout"] = {"groups": 2, "group_size": 1 if phase["name"] == "rlvr" else 4}
    return sections


def weights(run: Path) -> dict[str, Any]:
    return load_file(require_checkpoint(run) / "model" / "model.safetensors")


def test_tulu_trains_phase_after_phase_and_nothing_twice(tmp_path: Path) -> None:
    phases = phase_settings(shared(), [small(phase) for phase in TULU_3], tmp_path)
    assert [settings.run.path.name for settings in phases] == ["1-sft", "2-preference", "3-rlvr"]
    last = train_phases(phases)
    first, second, third = (settings.run.path for settings in phases)
    assert last == third
    # the supervised phase trains before its first step, the others in theirs
    assert RunDirectory.open(first).metrics()[0]["sft/updates"] == 2
    assert step_metrics(second)[0]["loss/policy/margin"] == pytest.approx(0, abs=1e-4)  # against its own beginning
    assert step_metrics(second)[0]["models/reward/pairs"] > 0
    ppo = step_metrics(third)[0]
    assert ppo["optim/updates"] == 4.0
    assert ppo["critic/value"] != 0.0  # the head of the reward model, after one update
    assert RunDirectory.open(third).config["models"]["value"]["kind"]["run"] == str(second)
    config = RunDirectory.open(second).config
    assert config["model"]["name"] == str(require_checkpoint(first) / "model")
    assert config["decontamination"] == DECONTAMINATION
    assert any(not value.equal(weights(second)[name]) for name, value in weights(first).items())
    before = [path.read_text() for path in sorted(tmp_path.glob("*/metrics.jsonl"))]
    assert train_phases(phases) == last
    assert [path.read_text() for path in sorted(tmp_path.glob("*/metrics.jsonl"))] == before


def test_critic_of_ppo_begins_as_the_reward_model_of_the_phase_before(tmp_path: Path) -> None:
    phases = phase_settings(shared(), [small(phase) for phase in TULU_3], tmp_path)
    train_phases(phases[:2])
    left = require_checkpoint(phases[1].run.path) / "parts" / "model_reward"
    context = build_run_context(phases[2])
    assert context.critic is not None
    begun = context.critic.learner
    state = begun.model.state_dict()
    assert all(value.equal(state[name]) for name, value in load_file(left / "model" / "model.safetensors").items())
    head = torch.load(left / "critic.pt", weights_only=True)["head"]["weight_D"]
    assert begun.critic is not None
    assert begun.critic.head.weight_D.equal(head)
    assert head.any()


def test_phases_are_referred_to_by_name(tmp_path: Path) -> None:
    critic = {"name": "token_critic", "run": "phase:first", "model": "reward"}
    second = {"name": "second", "recipe": "ppo", "models": {"value": {"kind": critic}}}
    phases = phase_settings(shared(), [{"name": "first"}, second], tmp_path)
    kind = phases[1].models["value"].kind
    assert kind.settings == {"run": str(tmp_path / "1-first"), "model": "reward"}
    # before anything has trained, as for a dry run, it is a copy of the policy
    assert [settings.models for settings in untrained_phases(phases)] == [
        {},
        {"value": NamedModelSettings(kind=Choice(name="token_critic"))},
    ]
    critic["run"] = "phase:frist"
    with pytest.raises(UnknownName, match=r"got 'frist' \(phase second\); did you mean first"):
        phase_settings(shared(), [{"name": "first"}, second], tmp_path)


def test_sections_of_a_phase_are_laid_over_the_shared_ones(tmp_path: Path) -> None:
    phases = phase_settings(
        {**shared(), "loss": {"name": "ppo_clip", "clip_low": 0.1}},
        [{"name": "a", "rollout": {"groups": 3}}, {"name": "b", "loss": {"name": "dpo"}}],
        tmp_path,
    )
    assert [(item.rollout.groups, item.rollout.group_size) for item in phases] == [(3, 4), (2, 4)]
    clipped = {"name": "ppo_clip", "clip_low": 0.1, "clip_high": 0.2}  # the upper bound is the recipe's
    assert [item.loss.model_dump() for item in phases] == [clipped, {"name": "dpo"}]


def test_pipelines_that_cannot_work_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="phases must be at least one, got none"):
        phase_settings(shared(), [], tmp_path)
    with pytest.raises(SettingsError, match="names of phases must differ, got a twice"):
        phase_settings(shared(), [{"name": "a"}, {"name": "a"}], tmp_path)
    with pytest.raises(SettingsError, match=r"got rollouts \(phase b\)"):
        phase_settings(shared(), [{"name": "a"}, {"name": "b", "rollouts": {}}], tmp_path)
    assert not list(tmp_path.iterdir())
