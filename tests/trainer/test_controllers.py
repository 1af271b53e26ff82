"""A run whose controllers change it: what they ask for is done, is in the metrics and the checkpoint, and resumes."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field
from torch import Tensor

from envgym.agents.models.loading import load
from envgym.config.settings import Settings
from envgym.errors import InvalidInput, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.methods.controllers.base import Control, ControlContext
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.scores import ScoreRequest
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from tests.support.tiny_runs import TINY, comparable
from tests.trainer.test_critic_run import settings


class Script(Settings):
    events: dict[int, dict[str, Any]] = Field(default_factory=dict)
    halve: int = 0
    """Step after which the weights are halved."""

    def planned(self, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        del settings
        return [event["settings"] for event in self.events.values() if "settings" in event]

    def after_step(self, context: ControlContext) -> Control | None:
        if context.step == self.halve:
            return Control(weights={name: weight / 2 for name, weight in context.weights.items()})
        return Control(**self.events[context.step]) if context.step in self.events else None


def scripted(folder: Path, *, steps: int, script: Mapping[str, Any], **sections: Any) -> TrainSettings:
    """Return a run with a script, on grpo and without a critic."""
    run = {"name": "test", "directory": str(folder), "steps": steps, "checkpoint_every": 1, "trackers": []}
    run["keep_checkpoints"] = steps
    data = {
        "run": run,
        "credit": "grpo",
        "optim": {"lr": 0.01},
        "controllers": [{"name": f"{__name__}:Script", **script}],
    }
    return settings(folder, **{**data, **sections})


EVENTS = {
    1: {"settings": {"optim.lr": 0.02, "objective": {"kl_coef": 0.1}, "loss": "reinforce", "rollout.group_size": 3}},
    3: {"reset_reference": True, "reset_optimizer": True, "settings": {"sampling.temperature": 0.5}},
    5: {"stop": "it has learned enough", "metrics": {"patience": 7.0}},
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, TrainSettings]:
    folder = tmp_path_factory.mktemp("controlled") / "run"
    chosen = scripted(folder, steps=9, script={"events": EVENTS, "halve": 4})
    result = train(chosen)
    assert (result.steps, result.stopped) == (5, "it has learned enough")
    return RunDirectory.open(folder), chosen


def test_changes_hold_from_the_next_step_on(changed: tuple[RunDirectory, TrainSettings]) -> None:
    rows = changed[0].metrics()
    assert [row["optim/lr"] for row in rows] == [0.01, 0.02, 0.02, 0.02, 0.02]
    assert [row["rollout/episodes"] for row in rows] == [4, 6, 6, 6, 6]
    assert [row.get("control/optim.lr") for row in rows] == [0.02] * 5
    assert [row["control/settings"] for row in rows] == [4, 0, 1, 0, 0]
    assert [row["control/weights"] for row in rows] == [0, 0, 0, 1, 0]
    assert [row.get("control/Script/patience") for row in rows] == [None] * 4 + [7.0]


def test_reference_is_the_policy_as_it_was_where_it_was_reset(changed: tuple[RunDirectory, TrainSettings]) -> None:
    kl = [row.get("loss/kl_reference") for row in changed[0].metrics()]
    assert kl[0] is None, "there was no term"
    assert kl[2] is not None
    assert kl[2] > 1e-3
    assert kl[3] == pytest.approx(0, abs=1e-6), "it was reset"
    assert sorted(path.name for path in changed[0].path.glob("reference*")) == ["reference", "reference-000003"]


def test_optimizer_that_was_reset_counts_its_updates_anew(changed: tuple[RunDirectory, TrainSettings]) -> None:
    counts = []
    for step in (3, 4, 5):
        file = changed[0].checkpoints / f"step-{step:06d}" / "optimizer.pt"
        state = torch.load(file, weights_only=True)["state"]
        counts.append(int(state[0]["step"]) if state else 0)
    assert counts == [0, 1, 2]


def test_resets_alone_are_kept_with_the_optimizer_that_they_left(tmp_path: Path) -> None:
    events = {2: {"reset_optimizer": True}, 3: {"reset_reference": True}}
    objective = {"kl_coef": 0.1}
    train(scripted(tmp_path, steps=3, script={"events": events}, objective=objective))
    run = RunDirectory.open(tmp_path)
    rows = [row for row in run.metrics() if row["step"]]
    assert [row["control/optimizer_resets"] for row in rows] == [0.0, 1.0, 0.0]
    assert [row["control/reference_resets"] for row in rows] == [0.0, 0.0, 1.0]
    history = json.loads((run.checkpoints / "step-000003" / "parts" / "control" / "history.json").read_text())
    kept = [(event["step"], event["reset_optimizer"], event["reset_reference"]) for event in history["events"]]
    assert kept == [(2, True, False), (3, False, True)]
    before = comparable(run)
    shutil.rmtree(run.checkpoints / "step-000003")
    train(scripted(tmp_path, steps=3, script={"events": events}, objective=objective), resume=True)
    assert comparable(run) == before, "step 3 begins with the optimizer without moments"


def test_weights_of_a_controller_are_the_policys(changed: tuple[RunDirectory, TrainSettings], tmp_path: Path) -> None:
    chosen = scripted(tmp_path, steps=4, script={"events": EVENTS})
    train(chosen)
    kept, halved = (
        load(run / "checkpoints" / "step-000004" / "model").model.state_dict() for run in (tmp_path, changed[0].path)
    )
    assert all(torch.equal(halved[name], kept[name] / 2) for name in kept)


def test_run_with_controllers_resumes_to_the_same_numbers(changed: tuple[RunDirectory, TrainSettings]) -> None:
    run, chosen = changed
    before = comparable(run)
    model = run.checkpoints / "step-000005" / "model" / "model.safetensors"
    weights = model.read_bytes()
    for step in (2, 3, 4, 5):
        shutil.rmtree(run.checkpoints / f"step-{step:06d}")
    assert train(chosen, resume=True).stopped == "it has learned enough"
    assert comparable(run) == before
    assert model.read_bytes() == weights
    history = json.loads((run.checkpoints / "step-000005" / "parts" / "control" / "history.json").read_text())
    assert [event["step"] for event in history["events"]] == [1, 3, 4, 5]
    assert history["events"][0]["settings"] == {
        "optim.lr": 0.02, "objective.kl_coef": 0.1, "loss.name": "reinforce", "rollout.group_size": 3
    }  # fmt: skip


def test_stopped_run_stays_stopped(changed: tuple[RunDirectory, TrainSettings]) -> None:
    assert train(changed[1], resume=True).steps == 5


def test_planned_change_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    chosen = scripted(tmp_path / "run", steps=2, script={"events": {1: {"settings": {"loss.clip_hgih": 0.3}}}})
    with pytest.raises(SettingsError, match=r"clip_hgih"):
        train(chosen)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"model.lora.rank": 4}, r"one that can change during a run \(it is loaded when the run starts\)"),
        ({"rollout.staleness": 1}, r"\(groups that are under way depend on it\), got rollout.staleness"),
        ({"replay.name": "rlep"}, r"\(what it keeps is that of the whole run\), got replay.name"),
        ({"annotate": ["tarl"]}, r"\(groups that are under way are annotated by it\), got annotate"),
        ({"models": {"value": {"kind": "snapshot"}}}, r"\(they are built when the run starts\), got models.value"),
        ({"nothing": 1}, r"\(there is no such section\), got nothing \(controller .*Script\)"),
        ({"credit": "gae_turn"}, "credit must not read a critic's values, as the one before, got gae_turn"),
        ({"search": {"name": "random_expand"}, "rollout.group_size": 7}, "random_expand"),
        ({"optim.lr": -1.0}, "optim.lr must be greater than 0"),
    ],
)
def test_change_that_cannot_be_is_refused_at_the_start(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_run_context(scripted(tmp_path, steps=2, script={"events": {1: {"settings": change}}}))


def test_temperature_stays_where_samples_of_another_are_under_way(tmp_path: Path) -> None:
    script = {"events": {1: {"settings": {"sampling.temperature": 0.5}}}}
    with pytest.raises(
        SettingsError, match=r"temperature must change only where no samples .* got rollout.staleness=1"
    ):
        build_run_context(scripted(tmp_path, steps=2, script=script, rollout={"staleness": 1}, correction="tis"))


class Foreign(Settings):
    """Asks for weights that are none of the model's."""

    def after_step(self, context: ControlContext) -> Control | None:
        return Control(weights={"head": torch.zeros(1)})


class Sudden(Settings):
    """Changes a setting that nobody knew of."""

    change: dict[str, Any]

    def after_step(self, context: ControlContext) -> Control | None:
        return Control(settings=self.change)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"objective.kl_coef": 0.1}, r"model reference must be .* got none .* begin the run with"),
        (
            {"credit": {"name": "reinforce_pp", "kl_coef": 0.1}},
            r"model reference must be a frozen model .* got none \(score reference\)",
        ),
    ],
)
def test_reference_that_nobody_planned_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    sudden = {"name": f"{__name__}:Sudden", "change": change}
    with pytest.raises(SettingsError, match=sentence):
        train(scripted(tmp_path, steps=1, script={}, controllers=[sudden]))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    chosen = scripted(tmp_path, steps=1, script={}, controllers=[f"{__name__}:Foreign"])
    with pytest.raises(InvalidInput, match="weights must be those that train, got others at"):
        train(chosen)


class Sure(Settings):
    """Lets only tokens train of which the policy was sure: none."""

    scores: ClassVar = (ScoreRequest(name="entropies", quantity="entropies"),)

    def __call__(self, batch: LossBatch) -> Tensor:
        return torch.where(batch.score("entropies") > 0, 0.0, batch.advantages_BT)


def test_token_weights_begin_between_steps_and_their_scores_are_computed(tmp_path: Path) -> None:
    changes = {"weights": [{"name": f"{__name__}:Sure"}]}
    script = {"events": {1: {"settings": changes}}}
    train(scripted(tmp_path, steps=2, script=script, credit="psr_nsr", loss="reinforce"))
    first, second = comparable(RunDirectory.open(tmp_path))
    assert first["loss/policy"] != 0
    assert second["loss/policy"] == 0
    assert first["control/settings"] == 1


def test_reference_of_adapters_is_reset_and_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    chosen = scripted(
        tmp_path,
        steps=4,
        script={"events": {2: {"reset_reference": True}, 3: {"reset_reference": True}}},
        model={"name": "tiny", "tiny": TINY, "lora": {"rank": 2}},
        objective={"kl_coef": 0.1},
        credit="psr_nsr",
    )
    train(chosen)
    run = RunDirectory.open(tmp_path)
    before = comparable(run)
    kl = [row["loss/kl_reference"] for row in before]
    assert kl[0] == kl[2] == kl[3] == pytest.approx(0, abs=1e-6)  # of the beginning, and after each reset
    assert kl[1] > 1e-4
    adapters = run.checkpoints / "step-000004" / "model" / "adapter_model.safetensors"
    weights = adapters.read_bytes()
    for step in (3, 4):
        shutil.rmtree(run.checkpoints / f"step-{step:06d}")
    train(chosen, resume=True)
    assert comparable(run) == before
    assert adapters.read_bytes() == weights
