"""Averages of weights: by hand, reduced to the weights themselves, bounded by what is averaged, and in a run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.agents.models.loading import load
from envgym.config.plugins import Choice
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.methods.controllers.base import CONTROLLER, ControlContext
from envgym.trainer.methods.controllers.weight_average import WeightAverage
from envgym.trainer.train import train
from tests.trainer.test_critic_run import settings

LAST = 6


def averages(controller: WeightAverage, weights: Iterable[float], first_step: int = 1) -> dict[int, float]:
    """Return what the policy is given after each step at which it is given an average."""
    chosen = {"run": {"steps": LAST}}
    found: dict[int, float] = {}
    for step, weight in enumerate(weights, start=first_step):
        seen = {"head": torch.tensor([weight], dtype=torch.float32)}
        control = controller.after_step(ControlContext(step=step, settings=chosen, metrics={}, weights=seen))
        if control is not None:
            assert control.weights is not None
            found[step] = control.weights["head"].item()
    return found


def test_exponential_average_by_hand() -> None:
    # d = 0.5: m_1 = 4, m_2 = 2 + 1 = 3, m_3 = 1.5 + 4 = 5.5, m_4 = 2.75 + 0 = 2.75, and two more steps of 0
    assert averages(WeightAverage(decay=0.5), [4, 2, 8, 0, 0, 0]) == {6: 0.6875}


def test_mean_of_the_last_by_hand() -> None:
    # after step 2: (4 + 2) / 2; 4: (2 + 8 + 0) / 3; 6: (0 + 3 + 6) / 3
    found = averages(WeightAverage(last=3, adopt_every=2), [4, 2, 8, 0, 3, 6])
    assert found == {2: 3.0, 4: pytest.approx(10 / 3), 6: 3.0}


def test_start_and_every_choose_what_is_averaged() -> None:
    # from step 3 on, every second: 8 (step 3) and 5 (step 5)
    assert averages(WeightAverage(last=9, start=2, every=2), [1, 1, 8, 1, 5, 1]) == {6: 6.5}


@pytest.mark.parametrize("controller", [WeightAverage(decay=0.0), WeightAverage(last=1)])
def test_average_without_memory_is_the_weights_of_now(controller: WeightAverage) -> None:
    assert averages(controller, [1, 2, 3, 4, 5, 6]) == {6: 6.0}


weights = st.lists(st.floats(-8, 8, width=32), min_size=LAST, max_size=LAST)


@given(weights, st.floats(0, 0.99) | st.integers(1, 8))
def test_average_lies_between_the_least_and_the_greatest_of_what_is_averaged(seen: list[float], memory: float) -> None:
    controller = WeightAverage(last=memory) if isinstance(memory, int) else WeightAverage(decay=memory)
    (average,) = averages(controller, seen).values()
    assert min(seen) - 1e-5 <= average <= max(seen) + 1e-5


@pytest.mark.parametrize("chosen", [{"decay": 0.9}, {"last": 3}])
def test_average_goes_on_from_its_checkpoint(chosen: dict[str, float], tmp_path: Path) -> None:
    whole = averages(WeightAverage.model_validate(chosen), [4, 2, 8, 0, 3, 6])
    first, second = WeightAverage.model_validate(chosen), WeightAverage.model_validate(chosen)
    averages(first, [4, 2, 8])
    first.save(tmp_path)
    second.load(tmp_path)
    assert averages(second, [0, 3, 6], first_step=4) == whole


def test_averages_of_half_precision_are_kept_wide() -> None:
    chosen = {"run": {"steps": 2}}
    controller, average = WeightAverage(decay=0.999), Tensor()
    for step, value in ((1, 1.0), (2, 1.0078125)):  # neighbours in bfloat16
        seen = {"head": torch.tensor([value], dtype=torch.bfloat16)}
        control = controller.after_step(ControlContext(step=step, settings=chosen, metrics={}, weights=seen))
        if control is not None and control.weights is not None:
            average = control.weights["head"]
    assert average.item() == pytest.approx(1 + 0.001 * 0.0078125, abs=1e-7)


@pytest.mark.parametrize("chosen, got", [({}, "neither"), ({"decay": 0.9, "last": 2}, "both")])
def test_one_kind_of_average_is_chosen(chosen: dict[str, float], got: str) -> None:
    with pytest.raises(SettingsError, match=f"decay or last must be set, got {got}"):
        CONTROLLER.build(Choice.model_validate({"name": "weight_average", **chosen}))


def test_run_ends_with_the_mean_of_its_last_weights(tmp_path: Path) -> None:
    controllers = [{"name": "weight_average", "last": 2}]
    sections = {"credit": "grpo", "optim": {"lr": 0.01}, "rollout": {"groups": 2, "group_size": 4}}
    for name, chosen in (("plain", []), ("averaged", controllers)):
        train(settings(tmp_path / name, **sections, controllers=chosen))
    first, second, averaged = (
        load(tmp_path / run / "checkpoints" / f"step-{step:06d}" / "model").model.state_dict()
        for run, step in (("plain", 1), ("plain", 2), ("averaged", 2))
    )
    assert not torch.equal(averaged["lm_head.weight"], second["lm_head.weight"])
    for name, weight in averaged.items():
        assert torch.allclose(weight, (first[name] + second[name]) / 2, atol=1e-7)


@pytest.mark.parametrize("place", [0, 1])
def test_run_that_is_ended_early_ends_with_the_mean_too(place: int, tmp_path: Path) -> None:
    controllers: list[dict[str, Any]] = [{"name": "stages", "stages": [{"after": {"step": 2}, "stop": True}]}]
    controllers.insert(place, {"name": "weight_average", "last": 2})
    run = {"name": "test", "directory": str(tmp_path / "run"), "steps": 5, "checkpoint_every": 1, "trackers": []}
    sections = {"credit": "grpo", "optim": {"lr": 0.01}, "rollout": {"groups": 2, "group_size": 4}}
    train(settings(tmp_path / "plain", **sections))
    train(settings(tmp_path / "run", **sections, run=run, controllers=controllers))
    first, second, averaged = (
        load(tmp_path / run / "checkpoints" / f"step-{step:06d}" / "model").model.state_dict()
        for run, step in (("plain", 1), ("plain", 2), ("run", 2))
    )
    for name, weight in averaged.items():
        assert torch.allclose(weight, (first[name] + second[name]) / 2, atol=1e-7)
    (last,) = [row for row in RunDirectory.open(tmp_path / "run").metrics() if row["step"] == 2 and "train/rows" in row]
    assert last["control/weights"] == 1.0
