"""The studies: their declarations and runs are sound, and every page is what `report` writes from its data."""

import json
import shutil
from functools import cache
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import yaml

from benchmarks._study_charts import CurvePoint, plot_curves, plot_differences
from benchmarks._study_results import SeedResults, best_rates, planned_primary_effect
from benchmarks._study_runs import Run
from benchmarks._study_statistics import Mean, minimum_detectable_effect
from benchmarks.study import PAGES, STUDIES, Study, planned_by_tasks
from envgym.agents.evaluation.play import EvalRecord
from envgym.agents.search.protocol import SEARCH
from envgym.agents.settings import EvaluationSettings
from envgym.cli.main import build_parser
from envgym.config.plugins import Choice
from envgym.config.settings import apply_overrides
from envgym.errors import RunError, SettingsError
from envgym.runs.changes import changed_keys
from envgym.trainer.checks.environments import check_search
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.settings import TrainSettings, load_train_settings

NAMES = sorted(path.parent.name for path in STUDIES.glob("*/declaration.yaml"))
REPORTED = [name for name in NAMES if name != "trees_factbook"]
ROOT = Path("runs/studies")
parser_of = cache(build_parser)


def distinct(name: str) -> list[Run]:
    """Return the training runs of a study that differ in more than their seed."""
    study = Study(STUDIES / name, ROOT)
    runs = [run for run in study.runs(is_pilot=True) if run.is_training]
    return list(
        {
            (*run.command, run.key.get("cell"), run.key.get("arm"), run.name if not run.key else ""): run
            for run in runs
        }.values()
    )


def settings_of(run: Run) -> TrainSettings:
    """Load the settings of a run, without the weights of its warm start."""
    return load_train_settings(
        Path(run.command[1]), [item for item in run.overrides(ROOT) if "model.name=" not in item]
    )


TRAINED = [pytest.param(run, id=f"{name}/{run.name}") for name in NAMES for run in distinct(name)]


@pytest.mark.parametrize("name", REPORTED)
def test_page_is_what_report_writes(name: str) -> None:
    text, figure = Study.named(name).page()
    assert text == (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert (PAGES / f"{name}.svg").exists() == bool(figure) == (f"({name}.svg)" in text)


def test_study_without_data_has_no_page_and_waits_for_its_pilot() -> None:
    study = Study(STUDIES / "trees_factbook", ROOT)
    with pytest.raises(RunError, match="study must have data, got none"):
        study.page()
    with pytest.raises(SettingsError, match=r"minimum_detectable_effect must be declared .* got none \(primary\)"):
        study.run(jobs=1)


@pytest.mark.parametrize("name", NAMES)
def test_declared_seeds_are_not_those_of_the_pilot_and_pairs_are_of_its_arms(name: str) -> None:
    declared = Study.named(name).declared
    assert not set(declared.seeds) & set(declared.pilot_seeds)
    if declared.arms:
        assert {declared.baseline, *(arm for pair in declared.others for arm in pair)} <= set(declared.arms)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_pilot", [False, True])
def test_runs_have_directories_of_their_own_and_commands_that_parse(name: str, is_pilot: bool) -> None:
    runs = Study(STUDIES / name, ROOT).runs(is_pilot=is_pilot)
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        command, *words = run.words(ROOT)
        parser_of(command).parse_args([command, *words])
        if command == "eval":
            assert ("--split" in words) == is_pilot


@pytest.mark.parametrize("run", TRAINED)
def test_every_arm_suits_its_environment(run: Run) -> None:
    settings = settings_of(run)
    if run.key.get("arm"):
        sources = build_env_sources(settings.envs, EvaluationSettings(tasks=1))
        check_search(build_method(settings).search, sources, settings.agent, group_size=settings.rollout.group_size)


@pytest.mark.parametrize("name", ["trees", "trees_factbook"])
def test_arms_differ_in_search_credit_and_rate_only(name: str) -> None:
    free = ("search", "credit", "critic", "models", "rollout.group", "objective.shared_tokens", "run.", "optim.lr")
    runs, declared = [run for run in distinct(name) if run.key], Study.named(name).declared
    base = {run.key["cell"]: settings_of(run) for run in runs if run.key["arm"] == declared.baseline}
    assert len(runs) == len(declared.arms) * len(declared.cells)
    for run in runs:
        ours = settings_of(run)
        theirs = base[run.key["cell"]].model_dump(mode="json")
        assert [key for key in changed_keys(theirs, ours.model_dump(mode="json")) if not key.startswith(free)] == []
        assert (ours.filter.name, ours.objective.aggregation.name) == ("keep_all", "seq-mean-token-sum")


def test_rates_of_trees_are_declared_for_every_arm_and_cell() -> None:
    study = Study.named("trees")
    arms = study.declared.arms.values()
    assert all(set(arm["rates"]) == set(study.declared.cells) for arm in arms)
    assert len(study.runs()) == 12 * (1 + 2 * 9)


@pytest.mark.parametrize("name", Study.named("search_eval").declared.arms)
def test_only_the_labelled_arm_knows_the_reward(name: str) -> None:
    arm = Study.named("search_eval").declared.arms[name]
    value = ["value=tests.agents.search.test_golden_trees:brevity"] if arm.get("reads_value") else []
    overrides = apply_overrides({"name": arm["search"]}, [*arm["set"], *value, "budget.tokens_generated=200"])
    selection = SEARCH.build(Choice.model_validate(overrides)).selection
    assert selection is not None
    assert selection.is_oracle == arm.get("is_oracle", False)


def test_searches_may_spend_so_many_episodes_and_single_episodes_have_their_own_temperature() -> None:
    runs = {run.name: run for run in Study(STUDIES / "search_eval", ROOT).runs()}
    beam = runs["arithmetic/held-out/beam-4x"]
    assert "budget.tokens_generated=204" in beam.command
    assert beam.critic == f"{ROOT}/arithmetic/value"
    assert runs["arithmetic/held-out/likelihood-4x"].critic == ""

    def decoding(arm: str) -> tuple[str, str]:
        words = runs[f"arithmetic/trained-again/{arm}"].command
        assert "--search" not in words
        return words[words.index("--temperature") + 1], words[words.index("--samples") + 1]

    decodings = {arm: decoding(arm) for arm in ("raised", "greedy", "temperature_1")}
    assert decodings == {"raised": ("1.8", "8"), "greedy": ("0", "1"), "temperature_1": ("1", "8")}


def record_of(rewards: list[float]) -> EvalRecord:
    by_task = {f"test/{number}": [reward] for number, reward in enumerate(rewards)}
    fields = {"env_id": "e", "label": "l", "step": 0, "temperature": 1.0, "success_at": 1.0, "endings": {}}
    return EvalRecord.from_json({**fields, "rewards": by_task, "costs": {}, "seconds": 1.0})


def test_effect_planned_by_tasks_follows_from_the_pilot() -> None:
    # z at 0.05: 1.959964, at power 0.8: 0.841621; over 12 tasks
    expected = (1.959964 + 0.841621) * stdev([-1.0, 0.0, 0.0, 1.0]) / 12**0.5
    effect = planned_by_tasks(record_of([0, 0, 1, 1]), record_of([1, 0, 0, 1]), 12)
    assert effect == pytest.approx(expected, abs=1e-5)


AREAS = {  # (cell, arm) -> by seed
    ("calm", "chain"): (0.5, 0.6),
    ("calm", "tree"): (0.5, 0.7),
    ("calm", "critic"): (0.5, 0.6),
    ("wild", "chain"): (0.25, 0.25),
    ("wild", "tree"): (0.75, 0.95),
    ("wild", "critic"): (0.5, 0.5),
}
SMALL: dict[str, Any] = {
    "question": "Which?",
    "metric": "skill",
    "comparison": "seed",
    "correction": "holm",
    "seeds": [0, 1],
    "pilot_seeds": [100, 101],
    "baseline": "chain",
    "others": [["tree", "critic"]],
    "minimum_detectable_effect": {"primary": 0.1},
    "cells": {"calm": {"predicted": "nothing"}, "wild": {"predicted": "a gain"}},
    "arms": {name: {"rates": {"calm": 0.001, "wild": 0.01}} for name in ("chain", "tree", "critic")},
    "constants": {"config": "studies/trees/doors.yaml", "budget": 100, "rates": [0.001, 0.01], "primary": "tree"},
}


def record(seed: int, cell: str, arm: str, skill: float, rate: float = 0.001) -> dict[str, Any]:
    """Return the record of a run whose skill stays what it is."""
    totals = {"steps": 3, "prefilled": 1000.0, "seconds": 2.0, "tokens": 120.0, "training": skill}
    return {"seed": seed, "cell": cell, "arm": arm, "rate": rate, "points": [[0, skill], [120, skill]], **totals}


@pytest.fixture
def small(tmp_path: Path) -> Study:
    """Return a small study with the templates of `trees`, and its data."""
    folder = tmp_path / "trees"
    shutil.copytree(STUDIES / "trees", folder)
    (folder / "declaration.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False))
    records = [record(seed, *key, of[seed]) for seed in (0, 1) for key, of in AREAS.items()]
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in records))
    return Study(folder, tmp_path / "runs")


def test_interaction_is_the_difference_of_differences_by_seed(small: Study) -> None:
    results = SeedResults.of(small.declared, small.data(), (0, 1, 2))
    assert results.seeds == (0, 1)
    assert results.differences("wild", "tree", "chain") == pytest.approx([0.5, 0.7])
    # (.5 - 0, .7 - .1): mean .55, s = .0707107, half-width 12.7062047 s / sqrt(2)
    mean, low, high = results.primary_test().mean
    assert (mean, high - mean, mean - low) == pytest.approx((0.55, 0.63531024, 0.63531024))


def test_page_states_what_the_tests_find(small: Study, tmp_path: Path) -> None:
    small.report(tmp_path)
    text = (tmp_path / "trees.md").read_text()
    assert "Primary test: +55.0 [-8.5, +118.5] points, p = 0.058" in text
    assert "- Wild. Predicted: a gain.\n    - Above `chain`: `critic` +25.0" in text
    assert "; not distinguishable from `chain`: `tree` +60.0 [-67.1, +187.1].\n" in text
    assert "| wild | `tree` | `critic` | +35.0" in text
    # wild, tree: t = .6 / .1 = 6 with 1 degree of freedom: p = .10514; of 6 comparisons the least is of the critic, 0
    assert "| `tree` | 0.01 | 85.0 [-42.1, 212.1] | +60.0 [-67.1, +187.1] | 0.11 | 0.53 |" in text
    figure = (tmp_path / "trees.svg").read_text()
    small.report(tmp_path)
    assert (tmp_path / "trees.svg").read_text() == figure


def test_unfinished_runs_are_not_collected(small: Study) -> None:
    with pytest.raises(RunError, match="runs must be finished, got 12 that are not"):
        small.collect()


def test_pilot_selects_the_rate_of_the_largest_mean_area(small: Study) -> None:
    skills = {("wild", "tree", 0.01): (0.9, 0.5), ("wild", "tree", 0.001): (0.6, 0.7)}
    pilot = [
        record(100 + number, cell, arm, skills.get((cell, arm, rate), (0.25, 0.25))[number], rate)
        for number in (0, 1)
        for cell, arm in AREAS
        for rate in (0.001, 0.01)
    ]
    assert best_rates(small.declared, pilot)["tree"] == {"calm": 0.001, "wild": 0.01}
    # tree: (.9 - .25) and (.5 - .25), less 0 each, have a variance of .08; critic: 0
    expected = minimum_detectable_effect((0.08 / 2) ** 0.5, 2)
    assert planned_primary_effect(small.declared, pilot) == pytest.approx(expected)


def test_summary_of_final_metrics_by_hand(small: Study) -> None:
    starts = [record(seed, cell, "warm_start", 0.25) for seed in (0, 1) for cell in ("calm", "wild")]
    declared = small.declared.model_copy(update={"arms": {"chain": {}, "tree": {}}})
    results = SeedResults.of(declared, [*small.data(), *starts], (0, 1))
    table = results.summary("wild")
    assert list(table["arms"]) == ["tree", "chain"]
    assert table["start"] == {"by_seed": [0.25, 0.25], "success": 0.25}
    tree = table["arms"]["tree"]
    # variance of (.5, .7) .02; one arm and two seeds leave one degree of freedom: 12.7062047 * .1414214 / sqrt(2)
    assert tree["difference"] == pytest.approx((0.6, 0.6 - 1.27062047, 0.6 + 1.27062047))
    assert (tree["verdict"], table["arms"]["chain"]["difference"], tree["tokens"]) == ("", None, 120.0)
    assert table["detectable"] == pytest.approx(minimum_detectable_effect(0.02**0.5, 2, freedom=1))


def test_pages_of_recipes_are_written_from_new_runs_too(tmp_path: Path) -> None:
    folder = tmp_path / "methods"
    shutil.copytree(STUDIES / "methods", folder)
    (folder / "published.json").unlink()
    declared = Study(folder, tmp_path).declared
    records = [
        record(seed, cell, arm, 0.25 + 0.01 * number + 0.02 * seed * (number % 3))
        for seed in declared.seeds
        for cell in declared.cells
        for number, arm in enumerate(("warm_start", *declared.arms))
    ]
    for item in records:
        item["points"][-1][0] = 500_000
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in records))
    text, figure = Study(folder, tmp_path).page()
    assert "| warm start | 25.0 % | 25, 25, 25 |" in text
    assert "| `rloo` | 31.0 % | 27, 31, 35 |" in text
    assert "starpo_s" in figure


def test_charts_name_every_arm_and_are_equal_when_drawn_again() -> None:
    points = [CurvePoint(0.0, Mean(0.1, 0.0, 0.2)), CurvePoint(1.0, Mean(0.3, 0.2, 0.4))]
    arms = list(Study.named("trees").declared.arms)
    curves = plot_curves({"one": dict.fromkeys(arms, points), "two": dict.fromkeys(arms, points)}, axis="tokens")
    assert curves == plot_curves(
        {"one": dict.fromkeys(arms, points), "two": dict.fromkeys(arms, points)}, axis="tokens"
    )
    assert all(f">{arm}<" in curves for arm in arms)
    panel = {"worse": Mean(-0.1, -0.2, 0.0), "better": Mean(0.1, 0.0, 0.2)}
    differences = plot_differences({"one": panel, "two": panel}, axis="points")
    assert differences == plot_differences({"one": panel, "two": panel}, axis="points")
    assert all(f">{word}<" in differences for word in ("worse", "better", "one", "two", "points"))
