"""Compare evaluations of models on the same tasks: paired by task content, corrected for the number of comparisons.

The first model is the baseline. A difference is a gain or a loss only where its corrected interval excludes 0 and its
corrected p-value is at most 5 %; otherwise there is no evidence, and how many tasks it would take is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envgym.agents.evaluation.play import SPLIT_LABELS
from envgym.errors import InvalidInput, RunError
from envgym.runs.directory import RunDirectory, read_object, reading
from envgym.seeds import generator
from envgym.stats import (
    Estimate,
    HolmStep,
    PairedComparison,
    adjusted_variance,
    adjusted_wald_interval,
    compare_paired,
    correct_by_holm,
    estimate_success,
    minimum_detectable_effect,
    paired_differences,
    pass_at_k,
    required_tasks,
    successes_of,
)
from envgym.stats.intervals import FloatArray
from envgym.stats.power import DEFAULT_ALPHA
from envgym.stats.rates import invalid_share, powers_of_2, tasks_with, valid_samples

_WHERE: Final = "compare"


class ComparisonVerdict(StrEnum):
    """What a comparison shows."""

    GAIN = "gain"
    LOSS = "loss"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluation:
    """One model's successes on the tasks of one env."""

    name: str
    """Run directory or file that it was read from."""
    env_id: str
    label: str
    step: int
    success_at: float
    samples: int
    """Most samples of a task."""
    successes: Mapping[str, Sequence[bool | None]]
    """Content hash of a task -> success of its samples; None: invalid."""
    invalid_rate: float
    metrics: Mapping[str, float]
    """As recorded."""

    @property
    def success(self) -> Estimate | None:
        """Success over the valid samples; None where there are none."""
        valid = valid_samples(self.successes)
        return estimate_success(valid) if valid else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtKDifference:
    """pass@k of both models at one k."""

    k: int
    baseline: float
    other: float
    difference: Estimate
    """Its interval holds for all k of the curve together (Bonferroni)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtKCurve:
    """pass@k of both models over k: whether the second solves more tasks at all, or the same ones more often."""

    points: tuple[PassAtKDifference, ...]
    """By rising k, over the tasks that have the most samples."""
    verdict: ComparisonVerdict
    """At the largest k: a gain widens what the model can solve, a loss narrows it."""
    crossing: int | None
    """Smallest k whose difference has the sign opposite to that at k = 1, both intervals excluding 0; None: no k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """A model against the baseline, on one env."""

    baseline: ModelEvaluation
    other: ModelEvaluation
    paired: PairedComparison
    """Its difference has the plain 95 % interval."""
    corrected: Estimate
    """The difference with the interval at Holm's level."""
    corrected_p_value: float
    num_comparisons: int
    """Among which the correction was made."""
    verdict: ComparisonVerdict
    minimum_detectable_effect: float
    """Difference that these tasks detect with probability 80 %, at the level of the correction."""
    effect: float
    """Difference that `required_tasks` is of: the one asked for, or the one observed."""
    required_tasks: int | None
    """Tasks that detect `effect` with probability 80 %; None: it is 0."""
    pass_at_k: PassAtKCurve | None
    """None: one sample per task."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_evaluations(path: Path) -> dict[str, ModelEvaluation]:
    """Return the newest evaluation of every env and split of a run, or the one of a file of its `evals`, by title.

    Raises: RunError: no run, of a newer schema, without evaluations, or one that cannot be read.
    """
    if path.is_file() and path.parent.name == "evals":
        run, records = RunDirectory.open(path.parent.parent), [read_object(path)]
    else:
        run = RunDirectory.open(path)
        records = sorted(run.evals(), key=lambda data: int(data["step"]))
    newest = {data["label"]: data for data in records if str(data["label"]).startswith(tuple(SPLIT_LABELS.values()))}
    do = "finish it with --resume, or name another run"
    RunError.unless(newest, "run", "hold an evaluation on a split", "none", where=str(path), do=do)
    with reading(str(path)):
        evaluations = [_evaluation(run, data, name=str(path)) for data in newest.values()]
    titles = [_title(item) for item in evaluations]
    return {
        title if titles.count(title) == 1 else f"{item.env_id}, {item.label}": item
        for title, item in zip(titles, evaluations, strict=True)
    }


def _title(evaluation: ModelEvaluation) -> str:
    """Return env and split, whatever else is in the label: the name in a mixture, how answers were chosen."""
    return f"{evaluation.env_id}, {next(name for name in SPLIT_LABELS.values() if evaluation.label.startswith(name))}"


def _evaluation(run: RunDirectory, data: Mapping[str, Any], *, name: str) -> ModelEvaluation:
    keys = dict(run.task_keys(data["label"], data["step"]))
    if missing := [task_id for task_id in data["rewards"] if task_id not in keys]:
        do = "restore the run's folder `episodes`: tasks are compared by their content, which is there"
        got = f"{len(missing)} of {len(data['rewards'])} tasks without one, such as {missing[0]}"
        raise RunError.of("every task", "have a saved episode", got, where=f"{name}, {data['label']}", do=do)
    successes = successes_of(data["rewards"], data["success_at"])
    return ModelEvaluation(
        name=name,
        env_id=data["env_id"],
        label=data["label"],
        step=data["step"],
        success_at=data["success_at"],
        samples=max(map(len, data["rewards"].values()), default=0),
        successes={keys[task_id]: own for task_id, own in successes.items()},
        invalid_rate=invalid_share(data["rewards"]),
        metrics=data.get("metrics", {}),
    )


# ---- comparing -------------------------------------------------------------------------------------------------------


def compare_evaluations(
    runs: Sequence[Mapping[str, ModelEvaluation]], *, effect: float | None = None
) -> dict[str, list[ModelComparison]]:
    """Compare every run with the first one on the envs that all of them have, by title.

    Args:
        runs: at least two, as `read_evaluations` returns them.
        effect: difference of success rates for which the required tasks are told; None: the one observed.

    Raises: InvalidInput: fewer than two runs, none in common, or other tasks, samples or thresholds of success.
    """
    do = "name two runs or more"
    InvalidInput.unless(len(runs) > 1, "runs to compare", "be at least 2", len(runs), where=_WHERE, do=do)
    titles = [title for title in runs[0] if all(title in run for run in runs)]
    if not titles:
        got = "; ".join(" and ".join(run) for run in runs)
        do = "evaluate the models on the same environment and split"
        raise InvalidInput.of("runs", "share an environment and split", got, where=_WHERE, do=do)
    pairs = [(title, runs[0][title], run[title]) for title in titles for run in runs[1:]]
    paired = [pair_evaluations(baseline, other) for _, baseline, other in pairs]
    steps = correct_by_holm([result.p_value for result, _ in paired])
    comparisons: dict[str, list[ModelComparison]] = {title: [] for title in titles}
    for (title, baseline, other), (result, differences), step in zip(pairs, paired, steps, strict=True):
        comparisons[title].append(_comparison(baseline, other, result, differences, step, len(pairs), effect))
    return comparisons


def pair_evaluations(baseline: ModelEvaluation, other: ModelEvaluation) -> tuple[PairedComparison, FloatArray]:
    """Pair two evaluations over the tasks with a valid sample in both. Raises: InvalidInput: they do not fit."""
    where = f"{baseline.name} and {other.name}, {baseline.env_id}"
    for what, value in (("success_at", "success_at"), ("samples per task", "samples")):
        one, two = getattr(baseline, value), getattr(other, value)
        do = "evaluate both with the same value"
        InvalidInput.unless(one == two, what, "be the same", f"{one} and {two}", where=where, do=do)
    first, second = baseline.successes.keys(), other.successes.keys()
    if first != second:
        got = f"{len(first - second)} only in the first and {len(second - first)} only in the second"
        do = "evaluate both with the same --tasks, --split and settings of the environment"
        raise InvalidInput.of("tasks", "be the same in both evaluations", got, where=where, do=do)
    before, after = valid_samples(baseline.successes), valid_samples(other.successes)
    common = before.keys() & after.keys()
    do = "look into the errors of its episodes with `envgym view`"
    InvalidInput.unless(common, "evaluations", "share a task with a valid sample", "none", where=where, do=do)
    before, after = ({task: samples[task] for task in common} for samples in (before, after))
    result = compare_paired(before, after, rng=generator("compare", baseline.env_id))
    return result, paired_differences(before, after)


def _comparison(
    baseline: ModelEvaluation,
    other: ModelEvaluation,
    paired: PairedComparison,
    differences: FloatArray,
    step: HolmStep,
    num_comparisons: int,
    effect: float | None,
) -> ModelComparison:
    difference = _at_level(paired.difference, differences, step.level)
    alpha, variance = DEFAULT_ALPHA / num_comparisons, adjusted_variance(differences)
    target = abs(paired.difference.value) if effect is None else effect
    return ModelComparison(
        baseline=baseline,
        other=other,
        paired=paired,
        corrected=difference,
        corrected_p_value=step.p_value,
        num_comparisons=num_comparisons,
        verdict=_verdict(difference) if step.p_value <= DEFAULT_ALPHA else ComparisonVerdict.NO_EVIDENCE,
        minimum_detectable_effect=minimum_detectable_effect(paired.num_tasks, variance, alpha=alpha),
        effect=target,
        required_tasks=required_tasks(target, variance, alpha=alpha) if target else None,
        pass_at_k=_pass_at_k_curve(baseline, other),
    )


def _at_level(difference: Estimate, differences: FloatArray, level: float) -> Estimate:
    interval = adjusted_wald_interval(differences, level=level)
    return Estimate(
        value=difference.value, interval=interval, num_tasks=difference.num_tasks, num_samples=difference.num_samples
    )


def _verdict(difference: Estimate) -> ComparisonVerdict:
    if difference.interval.low > 0:
        return ComparisonVerdict.GAIN
    return ComparisonVerdict.LOSS if difference.interval.high < 0 else ComparisonVerdict.NO_EVIDENCE


def _pass_at_k_curve(baseline: ModelEvaluation, other: ModelEvaluation) -> PassAtKCurve | None:
    """Compare pass@k over the tasks that have the most valid samples in both; None where that is one, or none has."""
    most = baseline.samples
    before, after = (tasks_with(valid_samples(item.successes), most) for item in (baseline, other))
    tasks = before.keys() & after.keys()
    if most < 2 or not tasks:
        return None
    ks = sorted({*powers_of_2(most), most})
    points: list[PassAtKDifference] = []
    for k in ks:
        rates = [{task: [pass_at_k(most, sum(own[task]), k)] for task in tasks} for own in (before, after)]
        differences = paired_differences(*rates)
        estimate = Estimate(
            value=float(differences.mean()),
            interval=adjusted_wald_interval(differences, level=1 - DEFAULT_ALPHA / len(ks)),
            num_tasks=len(tasks),
            num_samples=2 * most * len(tasks),
        )
        means = [sum(rate for (rate,) in of_model.values()) / len(tasks) for of_model in rates]
        points.append(PassAtKDifference(k=k, baseline=means[0], other=means[1], difference=estimate))
    verdicts = [_verdict(point.difference) for point in points]
    opposite = {ComparisonVerdict.GAIN: ComparisonVerdict.LOSS, ComparisonVerdict.LOSS: ComparisonVerdict.GAIN}
    crossed = [point.k for point, verdict in zip(points, verdicts, strict=True) if verdict is opposite.get(verdicts[0])]
    return PassAtKCurve(points=tuple(points), verdict=verdicts[-1], crossing=min(crossed, default=None))
