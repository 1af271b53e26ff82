"""Comparisons: paired by task content, refused where they do not fit, and no noise is called a gain."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envgym.agents.evaluation.compare import ComparisonVerdict, ModelEvaluation, compare_evaluations, read_evaluations
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import main
from envgym.errors import InvalidInput, RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from tests.support.example_trees import outcome_tree

TITLE = "math/arithmetic-v0, held-out"


def evaluation(successes: Mapping[str, Sequence[bool | None]], **changes: object) -> ModelEvaluation:
    fields = {"name": "run", "env_id": "e", "label": "held-out", "step": 0, "success_at": 1.0, "metrics": {}}
    samples = max(map(len, successes.values()))
    return ModelEvaluation(**{**fields, "samples": samples, "successes": successes, "invalid_rate": 0.0, **changes})  # type: ignore[arg-type]  # by name


def drawn(rates: Sequence[float], samples: int, rng: np.random.Generator) -> ModelEvaluation:
    return evaluation({f"t{i}": (rng.random(samples) < rate).tolist() for i, rate in enumerate(rates)})


def written(path: Path, rewards: Sequence[Sequence[float | None]], *, step: int = 0, first: int = 0) -> Path:
    """Write a run with an evaluation of these rewards by task; the tasks are numbered by content from `first`."""
    run = RunDirectory.create(path, name=path.name, config={}) if not path.exists() else RunDirectory.open(path)
    trees = [
        replace(outcome_tree(f"{task}/{sample}", reward), task_id=f"test/{task}", task_key=f"key {first + task}")
        for task, own in enumerate(rewards)
        for sample, reward in enumerate(own)
    ]
    record = EvalRecord(
        env_id="math/arithmetic-v0",
        label="held-out",
        step=step,
        temperature=1.0,
        success_at=1.0,
        rewards={f"test/{task}": tuple(own) for task, own in enumerate(rewards)},
        endings={},
        costs={},
        seconds=1.0,
    )
    run.write_episodes(step, episode_rows(trees, step=step), label="held-out")
    run.write_eval(step, "held-out", record.to_json())
    return path


def test_two_identical_models_compared_200_times_gain_in_at_most_17() -> None:
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(200):
        rates = rng.beta(1, 1, size=60).tolist()
        (compared,) = compare_evaluations([{"e": drawn(rates, 2, rng)}, {"e": drawn(rates, 2, rng)}])["e"]
        verdicts.append(compared.verdict)
    assert verdicts.count(ComparisonVerdict.GAIN) <= 17
    assert verdicts.count(ComparisonVerdict.NO_EVIDENCE) >= 200 - 17


def test_a_large_difference_is_a_gain_one_way_and_a_loss_the_other() -> None:
    rng = np.random.default_rng(1)
    weak, strong = drawn([0.3] * 80, 1, rng), drawn([0.8] * 80, 1, rng)
    (up,) = compare_evaluations([{"e": weak}, {"e": strong}])["e"]
    (down,) = compare_evaluations([{"e": strong}, {"e": weak}])["e"]
    assert (up.verdict, down.verdict) == (ComparisonVerdict.GAIN, ComparisonVerdict.LOSS)
    assert up.corrected.value == -down.corrected.value > 0
    assert up.corrected.interval.low > 0 > down.corrected.interval.high


def test_more_comparisons_are_judged_more_strictly() -> None:
    # 11 of 40 tasks better, 2 worse: p = 2 (1 + 13 + 78)/2^13 = 0.0225
    base = evaluation({f"t{i}": [i < 2] for i in range(40)})
    better = evaluation({f"t{i}": [2 <= i < 13] for i in range(40)})
    (alone,) = compare_evaluations([{"e": base}, {"e": better}])["e"]
    first, *others = compare_evaluations([{"e": base}, {"e": better}, {"e": base}, {"e": base}])["e"]
    assert alone.paired.p_value == pytest.approx(0.0225, abs=1e-4)
    assert alone.verdict is ComparisonVerdict.GAIN
    assert first.corrected_p_value == pytest.approx(3 * alone.paired.p_value)
    assert first.corrected.interval.level == pytest.approx(1 - 0.05 / 3)
    assert [item.verdict for item in (first, *others)] == [ComparisonVerdict.NO_EVIDENCE] * 3


def test_tasks_that_a_difference_needs_are_told() -> None:
    base = evaluation({f"t{i}": [i % 2 == 0] for i in range(20)})
    other = evaluation({f"t{i}": [i % 2 == 0 or i == 1] for i in range(20)})
    (item,) = compare_evaluations([{"e": base}, {"e": other}])["e"]
    # adjusted variance (1 + 1)/22 - (1/22)^2 = 0.088843; 1/20: (1.959964 + 0.841621)^2 * 0.088843 * 400 = 278.9
    assert (item.effect, item.required_tasks) == (0.05, 279)
    (asked,) = compare_evaluations([{"e": base}, {"e": other}], effect=0.01)["e"]
    assert asked.required_tasks == 6974
    (same,) = compare_evaluations([{"e": base}, {"e": base}])["e"]
    assert (same.verdict, same.required_tasks) == (ComparisonVerdict.NO_EVIDENCE, None)


def test_invalid_samples_are_left_out() -> None:
    base = evaluation({"a": [True, None], "b": [None, None], "c": [False, True]})
    (item,) = compare_evaluations([{"e": base}, {"e": base}])["e"]
    assert item.paired.num_tasks == 2


def test_training_that_narrows_is_seen_at_large_k() -> None:
    # The base solves each task once in a while; the trained model a third of them always, the others never.
    base = evaluation({f"t{i}": [True] * 3 + [False] * 13 for i in range(90)})
    trained = evaluation({f"t{i}": [i % 3 == 0] * 16 for i in range(90)})
    (item,) = compare_evaluations([{"e": base}, {"e": trained}])["e"]
    assert item.pass_at_k is not None
    assert [point.k for point in item.pass_at_k.points] == [1, 2, 4, 8, 16]
    assert item.pass_at_k.points[0].baseline == pytest.approx(3 / 16)
    assert item.pass_at_k.points[-1].baseline == 1.0
    assert item.pass_at_k.points[-1].other == pytest.approx(1 / 3)
    assert (item.verdict, item.pass_at_k.verdict) == (ComparisonVerdict.GAIN, ComparisonVerdict.LOSS)
    # pass@2 of the base: 1 - C(13,2)/C(16,2) = 0.35, alike; pass@4: 1 - C(13,4)/C(16,4) = 0.607 is above 1/3
    assert item.pass_at_k.crossing == 4


def test_curves_of_few_tasks_do_not_cross() -> None:
    base = evaluation({f"t{i}": [True] + [False] * 3 for i in range(4)})
    trained = evaluation({f"t{i}": [i % 2 == 0] * 4 for i in range(4)})
    (item,) = compare_evaluations([{"e": base}, {"e": trained}])["e"]
    assert item.pass_at_k is not None
    assert (item.pass_at_k.verdict, item.pass_at_k.crossing) == (ComparisonVerdict.NO_EVIDENCE, None)


@pytest.mark.parametrize(
    "other, told",
    [
        (
            evaluation({"b": [True]}),
            "tasks must be the same in both evaluations, got 1 only in the first and 1 only in the",
        ),
        (evaluation({"a": [True] * 2}), "samples per task must be the same, got 1 and 2"),
        (evaluation({"a": [True]}, success_at=0.5), "success_at must be the same, got 1.0 and 0.5"),
        (evaluation({"a": [None]}), "evaluations must share a task with a valid sample, got none"),
    ],
)
def test_evaluations_that_do_not_fit_are_refused(other: ModelEvaluation, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        compare_evaluations([{"e": evaluation({"a": [True]})}, {"e": other}])


def test_runs_without_a_common_env_and_a_single_run_are_refused() -> None:
    one = evaluation({"a": [True]})
    with pytest.raises(InvalidInput, match="runs must share an environment and split, got e; f"):
        compare_evaluations([{"e": one}, {"f": one}])
    with pytest.raises(InvalidInput, match="runs to compare must be at least 2, got 1"):
        compare_evaluations([{"e": one}])


def test_a_run_is_compared_by_task_content_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "run", [[0.0, 1.0], [0.0, 0.0], [None, 0.0]])
    written(run, [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], step=70)
    before = run / "evals" / "step-000000-held-out.json"
    found = read_evaluations(run)[TITLE]
    assert (found.step, list(found.successes), found.invalid_rate) == (70, ["key 0", "key 1", "key 2"], 0.0)
    assert read_evaluations(before)[TITLE].invalid_rate == pytest.approx(1 / 6)
    assert main(["compare", str(before), str(run), "--json"]) == 0
    ((item,),) = json.loads(capsys.readouterr().out).values()
    assert (item["verdict"], item["paired"]["difference"]["num_tasks"], item["other"]["step"]) == ("no evidence", 3, 70)
    assert main(["compare", str(before), str(run), "--detect", "1"]) == 0
    out = capsys.readouterr().out
    assert "verdict      no evidence; " in out
    assert "1.0 points need " in out
    assert "pass@2" in out


@pytest.mark.parametrize("points", ["0", "101", "nan"])
def test_precision_outside_the_range_is_refused(points: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--detect", points]) == 2
    assert "--detect must lie in (0, 100]" in capsys.readouterr().err


def test_same_ids_of_other_content_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = written(tmp_path / "one", [[1.0]]), written(tmp_path / "two", [[1.0]], first=5)
    assert main(["compare", str(one), str(two)]) == 2
    assert "tasks must be the same in both evaluations" in capsys.readouterr().err


def test_broken_or_missing_episodes_and_newer_schemas_are_named(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [[1.0]])
    (episodes,) = (run / "episodes").iterdir()
    content = episodes.read_bytes()
    episodes.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"run file must be as envgym wrote it, .*held-out.parquet"):
        read_evaluations(run)
    episodes.unlink()
    with pytest.raises(
        RunError, match="every task must have a saved episode, got 1 of 1 tasks without one, such as test/0"
    ):
        read_evaluations(run)
    (run / "run.json").write_text('{"schema": 99}')
    with pytest.raises(RunError, match=r"run schema must be 1\.\.4, got 99"):
        read_evaluations(run)
    assert len(list((run / "evals").iterdir())) == 1, "nothing was lost"


def test_run_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config={})
    with pytest.raises(RunError, match="run must hold an evaluation on a split, got none"):
        read_evaluations(run.path)
