"""The study of trees and chains: its runs, its areas, its tests, its page."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks._curves import CurvePoint, plot
from benchmarks._studies import Mean, minimum_detectable_effect, read_declaration, t_interval
from benchmarks._trees_report import best_rates, compare, planned_effect, primary_test, read_results, write_report
from benchmarks._trees_runs import Arm, Cell, Declaration, TreeRun, area
from benchmarks.trees import PAGES, declared_runs
from envgym.agents.settings import EvaluationSettings
from envgym.errors import RunError, SettingsError
from envgym.run_changes import changed_keys
from envgym.runs import RunDirectory
from envgym.trainer.checks.compatibility import check_search
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.settings import TrainSettings, load_train_settings
from tests.support.pages import ROOT

STUDIES = {study: read_declaration(Declaration, study) for study in PAGES}
DECLARED = STUDIES["tree_study"]
TEXT = (ROOT / "examples" / "tree_study" / "page.md").read_text(encoding="utf-8")
SMALL = Declaration(
    config="examples/tree_study/doors.yaml",
    metric="skill",
    seeds=(0, 1),
    pilot_seeds=(100, 101),
    budget=100,
    rates=(0.001, 0.01),
    baseline="chain",
    primary="tree",
    others=(("tree", "critic"),),
    minimum_detectable_effect=0.1,
    cells={"calm": Cell(predicted="nothing"), "wild": Cell(predicted="a gain")},
    arms={name: Arm(rates={"calm": 0.001, "wild": 0.01}) for name in ("chain", "tree", "critic")},
)
AREAS = {  # (cell, arm) -> by seed
    ("calm", "chain"): (0.5, 0.6),
    ("calm", "tree"): (0.5, 0.7),
    ("calm", "critic"): (0.5, 0.6),
    ("wild", "chain"): (0.25, 0.25),
    ("wild", "tree"): (0.75, 0.95),
    ("wild", "critic"): (0.5, 0.5),
}


def records(seeds: tuple[int, ...] = (0, 1)) -> str:
    """Return the data of runs whose skill stays what it is."""
    return "".join(
        json.dumps({"seed": seed, "cell": cell, "arm": arm, "points": [[0, of[seed]], [120, of[seed]]], **TOTALS})
        + "\n"
        for seed in seeds
        for (cell, arm), of in AREAS.items()
    )


FREE = ("search", "credit", "critic", "models.", "models", "rollout.group", "objective.shared_tokens", "run.directory")
"""What arms may differ in."""
TOTALS = {"rate": 0.001, "steps": 3, "prefilled": 1000.0, "seconds": 2.0}


def settings_of(declared: Declaration, cell: str, arm: str) -> TrainSettings:
    run = TreeRun(root=Path("runs"), seed=0, cell=cell, arm=arm, rate=0.001)
    sets = [f"{name}={value}" for name, value in run.sets(declared).items() if name != "model.name"]
    return load_train_settings(ROOT / declared.config, sets)


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0.0, 0.5), (100.0, 0.5)], 0.5),
        ([(0.0, 0.0), (100.0, 1.0)], 0.5),
        ([(0.0, 0.0), (50.0, 1.0), (100.0, 1.0)], 0.75),  # 1/4 + 1/2
        ([(0.0, 0.0), (50.0, 1.0), (150.0, 0.0)], 0.625),  # 1/4 + (1 + 1/2) / 2 / 2: cut at half of the last piece
        ([(0.0, 0.0), (100.0, 1.0), (200.0, 1.0)], 0.5),  # what is beyond the budget does not count
    ],
)
def test_area_by_hand(points: list[tuple[float, float]], expected: float) -> None:
    assert area(points, 100.0) == pytest.approx(expected)


def test_paired_comparison_by_hand() -> None:
    # mean 2, s = 1, t = 2 sqrt(3) = 3.4641; with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2) = 0.0741799
    found = compare([1.0, 2.0, 3.0])
    assert found.mean == t_interval([1.0, 2.0, 3.0])
    assert found.p_value == pytest.approx(0.0741799, abs=1e-7)
    assert (compare([0.0, 0.0]).p_value, compare([0.5, 0.5]).p_value) == (1.0, 0.0)


def test_interaction_is_the_difference_of_differences_by_seed(tmp_path: Path) -> None:
    data = tmp_path / "trees.jsonl"
    data.write_text(records())
    results = read_results(SMALL, [], data)
    assert results.seeds == (0, 1)
    assert results.differences("wild", "tree", "chain") == pytest.approx([0.5, 0.7])
    # (.5 - 0, .7 - .1): mean .55, s = .0707107, half-width 12.7062047 s / sqrt(2)
    mean, low, high = primary_test(results).mean
    assert (mean, high - mean, mean - low) == pytest.approx((0.55, 0.63531024, 0.63531024))


def test_legend_of_many_arms_fits_the_figure() -> None:
    points = [CurvePoint(0.0, Mean(0.1, 0.0, 0.2)), CurvePoint(1.0, Mean(0.3, 0.2, 0.4))]
    figure = ElementTree.fromstring(plot({"one": dict.fromkeys(DECLARED.arms, points)}, axis="tokens"))
    width, height = map(float, figure.attrib["viewBox"].split()[2:])
    entries = [text for text in figure.iter("{http://www.w3.org/2000/svg}text") if text.text in DECLARED.arms]
    places = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in entries]
    assert len(set(places)) == len(DECLARED.arms)
    assert all(x + 7 * len(str(text.text)) < width for (x, _), text in zip(places, entries, strict=True))
    grid = [line for line in figure.iter("{http://www.w3.org/2000/svg}line") if line.attrib["stroke"] == "#ddd"]
    assert max(y for _, y in places) < min(float(line.attrib["y1"]) for line in grid) < height


def test_only_whole_seeds_count_and_two_are_needed(tmp_path: Path) -> None:
    page = tmp_path / "trees.md"
    page.with_suffix(".jsonl").write_text(records((0,)) + records((1,)).splitlines()[0] + "\n")
    with pytest.raises(RunError, match="results must hold two whole seeds, got 1"):
        write_report(SMALL, [], page, TEXT)


def test_page_says_what_the_tests_say_and_is_made_again_from_its_data(tmp_path: Path) -> None:
    page = tmp_path / "trees.md"
    page.with_suffix(".jsonl").write_text(records())
    write_report(SMALL, [], page, TEXT)
    text = page.read_text()
    assert "Primary test: +55.0 [-8.5, +118.5] points, p = 0.058" in text
    assert "- Wild. Predicted: a gain.\n    - Above `chain`: `critic` +25.0" in text
    assert "; not distinguishable from `chain`: `tree` +60.0 [-67.1, +187.1].\n" in text
    assert "| wild | `tree` | `critic` | +35.0" in text
    # wild, tree: t = .6 / .1 = 6 with 1 degree of freedom: p = .10514; of 6 comparisons the least is of the critic, 0
    assert "| `tree` | 0.01 | 85.0 [-42.1, 212.1] | +60.0 [-67.1, +187.1] | 0.11 | 0.53 |" in text
    figure = ElementTree.fromstring(page.with_suffix(".svg").read_text())
    assert len(figure.findall("{http://www.w3.org/2000/svg}polyline")) == 6
    write_report(SMALL, [], page, TEXT)
    assert page.read_text() == text


def fake_pilot(monkeypatch: pytest.MonkeyPatch, skill: dict[tuple[str, str, float], tuple[float, float]]) -> None:
    """Give the pilot runs a constant skill by (cell, arm, rate), seed by seed."""

    def points(run: TreeRun, declared: Declaration) -> list[tuple[float, float]]:
        value = skill.get((run.cell, run.arm, run.rate), (0.25, 0.25))[run.seed - 100]
        return [(0.0, value), (float(declared.budget), value)]

    monkeypatch.setattr(TreeRun, "points", points)


def test_pilot_chooses_the_rate_of_the_largest_mean_area(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_pilot(monkeypatch, {("wild", "tree", 0.01): (0.9, 0.5), ("wild", "tree", 0.001): (0.6, 0.7)})
    rates = best_rates(SMALL, tmp_path)
    assert rates["tree"] == {"calm": 0.001, "wild": 0.01}
    # tree: (.9 - .25) and (.5 - .25), less 0 each, have a variance of .08; critic: 0
    expected = minimum_detectable_effect((0.08 / 2) ** 0.5, 2)
    assert planned_effect(SMALL, tmp_path) == pytest.approx(expected)


def test_declaration_has_the_arms_of_the_question() -> None:
    assert (len(DECLARED.seeds), len(DECLARED.rates), len(DECLARED.cells)) == (12, 3, 2)
    assert {arm.split("/")[0] for arm in DECLARED.arms} == {"chain", "tree", "late"}
    assert all(set(arm.rates) == set(DECLARED.cells) for arm in DECLARED.arms.values())


@pytest.mark.parametrize("study", STUDIES)
def test_declaration_compares_its_arms_on_seeds_apart_from_the_pilots(study: str) -> None:
    declared = STUDIES[study]
    assert not set(declared.seeds) & set(declared.pilot_seeds)
    assert {name for pair in declared.pairs for name in pair} | {declared.primary} <= set(declared.arms)


@pytest.mark.parametrize(
    "study, cell, arm", [(study, cell, arm) for study, of in STUDIES.items() for cell in of.cells for arm in of.arms]
)
def test_arms_differ_in_search_credit_and_rate_only(study: str, cell: str, arm: str) -> None:
    declared = STUDIES[study]
    base, ours = (settings_of(declared, cell, name) for name in (declared.baseline, arm))
    sources = build_env_sources(ours.envs, EvaluationSettings(tasks=1))
    check_search(build_method(ours).search, sources, ours.agent, group_size=ours.rollout.group_size)
    changed = changed_keys(base.model_dump(mode="json"), ours.model_dump(mode="json"))
    assert [key for key in changed if not key.startswith(FREE)] == []
    assert (ours.filter.name, ours.objective.aggregation.name) == ("keep_all", "seq-mean-token-sum")


def test_a_run_trains_from_the_warm_start_until_its_tokens_are_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {
        "sft.episodes": 8,
        "rollout.groups": 2,
        "evaluation.tasks": 2,
        "evaluation.tasks_during": 2,
        "model.tiny.num_layers": 1,
    }
    whole = TreeRun.sets
    monkeypatch.setattr(
        TreeRun, "sets", lambda run, declared: {**small, **whole(run, declared), **small_of(run, small)}
    )
    declared = DECLARED.model_copy(update={"budget": 300})
    run = TreeRun(root=tmp_path, seed=3, cell="luck 1", arm="tree/planned", rate=0.001)
    TreeRun(root=tmp_path, seed=3).make(declared)
    run.make(declared)
    points = run.points(declared)
    assert points is not None
    assert points[0][0] == 0.0
    assert points[-1][0] >= 300
    assert all(0 <= skill <= 1 for _, skill in points)
    record = run.record(declared)
    assert record is not None
    # two groups of 4 trees with two branches at turn 2: 4 x (2 + 2 x 8) tokens each
    assert points[-1][0] == record["steps"] * 2 * 72
    assert run.points(declared.model_copy(update={"budget": 10**6})) is None
    before = (run.directory / "metrics.jsonl").read_bytes()
    run.make(declared)  # it is there
    assert (run.directory / "metrics.jsonl").read_bytes() == before


def small_of(run: TreeRun, small: dict[str, Any]) -> dict[str, Any]:
    """Return what a small run sets again over its arm; the warm start of the others is not repeated."""
    return {name: value for name, value in small.items() if not (run.cell and name.startswith(("sft", "model")))}


def test_failed_run_names_its_log(tmp_path: Path) -> None:
    run = TreeRun(root=tmp_path, seed=3, cell="luck 1", arm="chain/grpo", rate=0.001)  # without its warm start
    with pytest.raises(RunError, match="run must end well, got code"):
        run.make(DECLARED)
    assert "must" in run.log.read_text()


def test_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    run = TreeRun(root=tmp_path, seed=3, cell="luck 1", arm="chain/grpo", rate=0.001)
    theirs = settings_of(DECLARED, "luck 1", "tree/sibling").model_dump(mode="json")
    RunDirectory.create(run.directory, name="other", config=theirs)
    with pytest.raises(RunError, match="resumed settings must be those of the run, got changes in"):
        run.make(DECLARED)


def test_rate_that_no_pilot_has_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="rate of chain/grpo must be declared for every cell"):
        declared_runs(STUDIES["tree_study_factbook"], tmp_path)


def test_study_has_a_run_of_every_seed_cell_and_arm(tmp_path: Path) -> None:
    runs = declared_runs(SMALL, tmp_path)
    assert len({run.directory for run in runs}) == len({run.log for run in runs}) == len(runs) == 2 * 2 * 3
    rates = [TreeRun(root=tmp_path, seed=0, cell="wild", arm="tree", rate=rate) for rate in (0.001, 0.0003)]
    assert rates[0].log != rates[1].log
    assert {run.rate for run in runs if run.cell == "wild"} == {0.01}
