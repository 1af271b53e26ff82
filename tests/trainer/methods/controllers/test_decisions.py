"""What controllers decide, by hand: stages, resets of the reference, coefficients by the entropy, schedules."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.config.plugins import Choice
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.checks.changes import changed_settings
from envgym.trainer.methods.controllers.base import CONTROLLER, Control, ControlContext, Controller, EvaluationSummary
from envgym.trainer.methods.protocols import Checkpointed
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train
from tests.trainer.test_critic_run import settings as tiny_run

PLAIN = train_settings({"envs": [{"id": "math/arithmetic-v0"}], "run": {"steps": 9}})


def built(name: str, **chosen: Any) -> Controller:
    return CONTROLLER.build(Choice.model_validate({"name": name, **chosen}))


def decisions(
    controller: Controller,
    metric: str,
    values: Sequence[float | None],
    *,
    first_step: int = 1,
    settings: TrainSettings = PLAIN,
) -> list[Control | None]:
    """Return what a controller asks for after each step, given a metric of each; its settings are put in force."""
    found: list[Control | None] = []
    for step, value in enumerate(values, start=first_step):
        metrics = {} if value is None else {metric: value}
        control = controller.after_step(ControlContext(step=step, settings=settings.model_dump(), metrics=metrics))
        settings = changed_settings(settings, {} if control is None else control.settings, where="test")
        found.append(control)
    return found


STAGES: list[Mapping[str, Any]] = [
    {"after": {"metric": "train/success", "above": 0.5, "times": 2}, "settings": {"loss": "reinforce"}},
    {"after": {"step": 6, "metric": "loss/entropy", "below": 0.1}, "settings": {"optim.lr": 0.1}, "stop": True},
]


def stages_begun(values: Sequence[float | None]) -> list[float]:
    controls = decisions(built("stages", stages=STAGES), "train/success", values)
    return [control.metrics["stage"] for control in controls if control is not None]


def test_stage_begins_after_enough_steps_in_a_row_and_the_next_at_its_step() -> None:
    # 0.6 is one step, 0.4 breaks the row, None does not count, 0.5 and 0.7 are two in a row
    assert stages_begun([0.6, 0.4, 0.5, None, 0.7, 0.1, 0.1]) == [0, 0, 0, 0, 1, 2, 2]


def test_no_stage_is_passed_over() -> None:
    # at step 6 the second could begin, but only after the first has
    assert stages_begun([0, 0, 0, 0, 0, 0, 0.5, 0.5, 0]) == [0, 0, 0, 0, 0, 0, 0, 1, 2]


def test_stage_asks_for_what_it_says() -> None:
    controls = decisions(built("stages", stages=STAGES), "train/success", [0.5] * 6)
    assert [control.settings for control in controls if control is not None and control.settings] == [
        {"loss": "reinforce"}, {"optim.lr": 0.1}
    ]  # fmt: skip
    assert [control.stop for control in controls if control is not None and control.stop] == ["stage 2 ends the run"]


def test_condition_reads_the_newest_evaluation_of_its_label() -> None:
    controller = built("stages", stages=[{"after": {"metric": "during/success", "above": 0.5}}])
    seen = [EvaluationSummary(0, "during", {"success": 0.9}), EvaluationSummary(4, "during", {"success": 0.2})]
    for evaluations, stage in ((seen, 0.0), (seen[:1], 1.0)):
        control = controller.after_step(
            ControlContext(step=5, settings=PLAIN.model_dump(), metrics={}, evaluations=evaluations)
        )
        assert control is not None
        assert control.metrics["stage"] == stage


@pytest.mark.parametrize("after", [{}, {"metric": "train/success"}, {"step": 3, "above": 0.5}])
def test_condition_names_a_step_or_a_metric_with_a_bound(after: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="condition must name a step, or a metric with a bound"):
        built("stages", stages=[{"after": after}])


def test_reference_is_reset_when_the_mean_of_a_window_stalls() -> None:
    # means of two: 1, 2 | 2, 1.5 (2 steps without more): reset | 1 (1), 1.5 (2): reset | 3: a new best
    controller = built("reference_reset", metric="reward/mean", window=2, patience=2)
    controls = decisions(controller, "reward/mean", [0, 2, 2, 2, 1, 1, 2, 4])
    assert [control is not None and control.reset_reference for control in controls] == [
        False, False, False, False, True, False, True, False
    ]  # fmt: skip
    assert [control.reset_optimizer for control in controls if control is not None][3] is True


def test_progress_never_resets_the_reference() -> None:
    controls = decisions(built("reference_reset", window=1, patience=1), "train/success", [0.1, 0.2, None, 0.3])
    assert not any(control.reset_reference for control in controls if control is not None)


def test_reset_without_a_reference_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"reference_reset must be used with a KL term .*, got objective.kl_coef=0"):
        build_run_context(tiny_run(tmp_path, credit="grpo", controllers=["reference_reset"]))


def coefs(values: Sequence[float | None], **chosen: float) -> list[float]:
    controls = decisions(built("entropy_target", **chosen), "loss/entropy", values)
    return [control.settings["objective.entropy_coef"] for control in controls if control is not None]


def test_coefficient_follows_the_gap_to_the_target_by_hand() -> None:
    # 0 + 0.1 (1 - 0.5) = 0.05; + 0.1 (1 - 0.8) = 0.07; no update; + 0.1 (1 - 1.5) = 0.02; + 0.1 (1 - 2) < 0
    found = coefs([0.5, 0.8, None, 1.5, 2.0], target=1.0, rate=0.1, max_coef=1.0)
    assert found == pytest.approx([0.05, 0.07, 0.02, 0.0])


def test_target_is_that_of_the_first_step_unless_it_is_set() -> None:
    # the first gap is 0; then 0.1 (2 - 1)
    assert coefs([2.0, 1.0], rate=0.1, max_coef=1.0) == pytest.approx([0.0, 0.1])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0, 5), st.floats(1e-3, 1))
def test_coefficient_stays_within_its_bounds(entropies: list[float], target: float, bound: float) -> None:
    assert all(0 <= coef <= bound for coef in coefs(entropies, target=target, rate=0.5, max_coef=bound))


def test_schedule_sets_the_value_of_the_steps_that_are_done() -> None:
    schedule = {"name": "linear", "start": 1.0, "end": 0.5, "steps": 4}
    controls = decisions(built("scheduled", setting="sampling.temperature", schedule=schedule), "any", [None] * 6)
    values = [None if control is None else control.settings["sampling.temperature"] for control in controls]
    assert values == [0.875, 0.75, 0.625, 0.5, None, None]


@pytest.mark.parametrize(
    "name, chosen, metric",
    [
        ("stages", {"stages": STAGES}, "train/success"),
        ("reference_reset", {"window": 2, "patience": 2}, "train/success"),
        ("entropy_target", {"rate": 0.1}, "loss/entropy"),
    ],
)
def test_controller_goes_on_from_its_checkpoint(name: str, chosen: dict[str, Any], metric: str, tmp_path: Path) -> None:
    values = [0.6, 0.6, 0.2, 0.5, 0.5, 0.1]
    whole, first, second = (built(name, **chosen) for _ in range(3))
    settings = changed_settings(PLAIN, {"objective.entropy_coef": 0.005}, where="test")
    expected = decisions(whole, metric, values, settings=settings)
    got = decisions(first, metric, values[:3], settings=settings)
    assert isinstance(first, Checkpointed)
    assert isinstance(second, Checkpointed)
    first.save(tmp_path)
    second.load(tmp_path)
    after = changed_settings(settings, {k: v for c in got if c is not None for k, v in c.settings.items()}, where="t")
    assert got + decisions(second, metric, values[3:], first_step=4, settings=after) == expected


def test_run_goes_through_every_controller_of_ours(tmp_path: Path) -> None:
    """R1-Searcher's two stages and ProRL's resets on the tiny model, beside a schedule and an entropy target."""
    stage = {"after": {"step": 1}, "settings": {"shaping": "none", "filter": {"name": "zero_variance"}}}
    controllers = [
        {"name": "stages", "stages": [stage]},
        {"name": "reference_reset", "metric": "reward/mean", "window": 1, "patience": 1},
        {"name": "entropy_target", "target": 9.0, "rate": 0.001},
        {
            "name": "scheduled",
            "setting": "optim.lr",
            "schedule": {"name": "linear", "start": 0.01, "end": 0.02, "steps": 2},
        },
    ]
    run = {"name": "test", "directory": str(tmp_path), "steps": 3, "checkpoint_every": 1, "trackers": []}
    sections = {"credit": "grpo", "objective": {"kl_coef": 0.1}, "optim": {"lr": 0.01}}
    train(tiny_run(tmp_path, run=run, controllers=controllers, **sections))
    rows = RunDirectory.open(tmp_path).metrics()
    assert [row["control/stages/stage"] for row in rows] == [1, 1, 1]
    # the first step is the best so far, and a model that never wins is never better
    assert [row["control/reference_resets"] for row in rows] == [0, 1, 1]
    assert [row["control/optim.lr"] for row in rows] == pytest.approx([0.015, 0.02, 0.02])
    first = rows[0]["control/objective.entropy_coef"]
    assert first == pytest.approx(0.001 * (9.0 - rows[0]["loss/entropy"]))
