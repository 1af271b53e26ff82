"""Results of evaluations, as lines for a terminal and as JSON."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgym.agents.evaluation.metrics.base import read_metrics
from envgym.agents.evaluation.play import SPLIT_LABELS
from envgym.cli.common import echo, styled
from envgym.core.json_types import JsonValue
from envgym.report.data import ComparisonData, EvaluationData, ToolFailure, to_json
from envgym.report.from_run import comparisons_of_run, declare, evaluations_of_run
from envgym.runs.directory import RunDirectory
from envgym.runs.wall_time import read_wall_time
from envgym.runtime.progress import duration
from envgym.stats.rates import invalid_share

_WIDTH = 13
_MAX_FAILURES = 5
_MOSTLY = 0.5
"""Share of the episodes from which their ending is what to change first."""
_MAX_MESSAGE = 120


def run_json(directory: Path, report: Path) -> dict[str, JsonValue]:
    """Return the results of a run's evaluations."""
    run = RunDirectory.open(directory)
    return {
        "directory": str(directory),
        "report": str(report),
        "wall_time_s": _wall_time(directory),
        "evaluations": [_evaluation_json(*pair) for pair in _with_records(run)],
        "comparisons": to_json(comparisons_of_run(run)),
    }


def _wall_time(directory: Path) -> float:
    return sum(process.seconds for process in read_wall_time(directory))


def _with_records(run: RunDirectory) -> list[tuple[EvaluationData, Mapping[str, Any]]]:
    records = {(data["step"], data["label"]): data for data in run.evals()}
    return [(evaluation, records[evaluation.step, evaluation.label]) for evaluation in evaluations_of_run(run)]


def _evaluation_json(evaluation: EvaluationData, record: Mapping[str, Any]) -> JsonValue:
    data = to_json(evaluation)
    assert isinstance(data, dict), "a record's JSON"
    tasks, samples = _size(record)
    return {
        **data,
        "env_id": record["env_id"],
        "temperature": record["temperature"],
        "episodes_s": record["seconds"],
        "metrics": dict(record.get("metrics", {})),
        "invalid_rate": invalid_share(record["rewards"]),
        "num_tasks": tasks,
        "samples_per_task": samples,
        "minimum_detectable_effect": declare(tasks, samples).minimum_detectable_effect,
    }


def _size(record: Mapping[str, Any]) -> tuple[int, int]:
    return len(record["rewards"]), max(map(len, record["rewards"].values()), default=0)


def print_evaluations(directory: Path) -> None:
    """Print everything that an evaluation measured."""
    run = RunDirectory.open(directory)
    for evaluation, record in _with_records(run):
        tasks, samples = _size(record)
        how = "greedy" if evaluation.greedy else f"temperature {record['temperature']:g}"
        if record.get("selected_by") is not None:
            how += f", {record['search']} by {record['selected_by']}"
        echo(styled(f"{record['env_id']}, {evaluation.label}: {tasks} tasks, {samples} sample(s) each, {how}", "bold"))
        for line in (*_tasks_lines(run, record), *evaluation_lines(evaluation), *metric_lines(record)):
            echo(line)
        echo(_line("detectable", _detectable(declare(tasks, samples).minimum_detectable_effect)))


def _tasks_lines(run: RunDirectory, record: Mapping[str, Any]) -> list[str]:
    tasks, target = _size(record)[0], run.config["evaluation"]["tasks"]
    if tasks >= target or not record["label"].startswith(tuple(SPLIT_LABELS.values())):  # in between, fewer are wanted
        return []
    return [_line("tasks", f"{tasks} of {tasks}: the split has no more; {target} were asked for")]


def _detectable(effect: float) -> str:
    if effect >= 1:
        return "none: there are too few tasks to detect any difference from another run"
    return f"{effect * 100:.1f} points: minimum detectable effect against another run (80 % power)"


def evaluation_lines(evaluation: EvaluationData) -> list[str]:
    """Return success, its bounds, pass@k, endings and costs, a line each."""
    bounds = evaluation.success
    lines = [_line("success", bounds.valid.percent if bounds.valid else "unknown: no episode is valid")]
    if bounds.num_invalid:
        low, high = bounds.as_failure, bounds.as_success
        text = f"{bounds.num_invalid} of {bounds.num_samples} episodes; counted as failures: {low.percent}"
        lines += [_line("invalid", text), _line("", f"counted as successes: {high.percent}")]
    for rates in evaluation.pass_rates:
        lines.append(_line(f"k = {rates.k}", f"pass@k {rates.at_k.percent}  pass^k {rates.hat_k.percent}"))
    endings = sorted(evaluation.endings.items(), key=lambda item: -item[1])
    lines.append(_line("endings", ", ".join(f"{ending.value} {count}" for ending, count in endings)))
    costs = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in evaluation.costs.items())
    lines.append(_line("per episode", costs))
    return lines + _tool_lines(evaluation.tool_failures)


def metric_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the metrics of an evaluation's record, a line each, with the invalid rate beside them."""
    metrics = read_metrics(record.get("metrics", {}))
    if not metrics:
        return []
    width = max(map(len, metrics)) + 2
    rate = f"invalid {invalid_share(record['rewards']):.1%}"
    lines = [f"{name:<{width}}{metric.words:<30}{rate}" for name, metric in metrics.items()]
    return [_line("" if number else "metrics", line) for number, line in enumerate(lines)]


def _tool_lines(failures: Sequence[ToolFailure]) -> list[str]:
    lines = [
        f"{item.calls} in {item.episodes} episode(s): {item.tool or 'malformed call'}: " + _shortened(item.message)
        for item in failures[:_MAX_FAILURES]
    ]
    if more := len(failures) - len(lines):
        lines.append(f"and {more} other(s), which the report lists")
    return [_line("" if number else "tool errors", line) for number, line in enumerate(lines)]


def _shortened(message: str) -> str:
    """Return the beginning of a message, cut after a word where the last word is not most of it."""
    if len(message) <= _MAX_MESSAGE:
        return message
    beginning = message[:_MAX_MESSAGE]
    words = beginning.rpartition(" ")[0]
    return f"{words if len(words) > _MAX_MESSAGE // 2 else beginning} …"


def print_run(directory: Path, report: Path) -> None:
    """Print what a training run changed, or what it measured where it took no step, and where its report is."""
    if any(row["step"] for row in RunDirectory.open(directory).metrics()):
        print_comparisons(directory)
        print_untrained(directory)
    else:
        print_evaluations(directory)
    print_end(directory, report)


def print_end(directory: Path, report: Path) -> None:
    """Print how long all processes of a run took together, and where its report is."""
    echo(_line("wall time", duration(_wall_time(directory))))
    echo(f"report: {report}")


def print_comparisons(directory: Path) -> None:
    """Print what changed from the first evaluation to the last, for every label that has two."""
    run = RunDirectory.open(directory)
    records = {record["label"]: record for record in run.evals()}
    for comparison in comparisons_of_run(run):
        for line in (*comparison_lines(comparison), *_tasks_lines(run, records[comparison.label])):
            echo(line)


def print_untrained(directory: Path) -> None:
    """Say where no train step updated the policy: the evaluations then differ by chance alone."""
    run = RunDirectory.open(directory)
    rows = [row for row in run.metrics() if row["step"]]
    if rows and not any(row.get("optim/updates", 1.0) for row in rows):
        dropped = {name: None for row in rows for name in row if name.startswith("filter/") and row[name]}
        names = (name.removeprefix("filter/").replace("_", " ") for name in dropped)
        reasons = ", ".join(re.sub("^(zero|low) variance$", r"\1 reward variance", name) for name in names)
        helps = _what_helps(rows, has_warm_start=run.config.get("sft") is not None)
        echo(f"no train step updated the policy: every group was dropped ({reasons}); {helps}")


def _what_helps(rows: Sequence[Mapping[str, float]], *, has_warm_start: bool) -> str:
    """Return why no group of these steps could teach, and what to change."""
    rewards = [row["reward/mean"] for row in rows if not math.isnan(row.get("reward/mean", math.nan))]
    if not rewards:
        return "no episode had a valid reward: fix the environment; the report shows the error of each episode"
    why = f"the episodes of a group had the same reward, {sum(rewards) / len(rewards):.2g} on average"
    if sum(row.get("train/success", 0.0) for row in rows) > len(rows) / 2:
        return f"{why}: choose harder tasks, because the policy solves these"
    truncated = sum(row.get("ending/TRUNCATED_TOKENS", 0.0) for row in rows) / len(rows)
    helps = [
        f"raise agent.max_turn_tokens or agent.max_context_tokens, because {truncated:.0%} of the episodes ended as "
        "TRUNCATED_TOKENS"
        if truncated > _MOSTLY
        else "choose easier tasks",
        "lengthen the warm start (sft.episodes, sft.epochs)" if has_warm_start else "add a warm start (an sft section)",
        "or raise rollout.group_size",
    ]
    return f"{why}: {', '.join(helps)}"


def comparison_lines(comparison: ComparisonData) -> list[str]:
    """Return before, after and change with their intervals."""
    paired = comparison.paired
    return [
        styled(f"{comparison.label}: success on the same {paired.num_tasks} tasks", "bold"),
        _line("before", f"{comparison.before.percent}  after {comparison.before_step} train steps"),
        _line("after", f"{comparison.after.percent}  after {comparison.after_step} train steps"),
        _line("change", f"{paired.difference.points}, p = {paired.p_value:.2g} ({paired.p_value_method.value})"),
    ]


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}{text}"
