"""The report of a run directory: read what was recorded, compare before and after, pick episodes to show.

Training runs and evaluations write the same layout, and their settings the same sections.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from envgym.core.endings import Ending
from envgym.core.trajectory import trajectories
from envgym.episodes import trees_of
from envgym.report.build import build_comparison, build_episode, build_evaluation, build_metric_row
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    Declared,
    EpisodeData,
    EvaluationData,
    Meta,
    ReportData,
)
from envgym.report.write import write_report
from envgym.runs import RunDirectory
from envgym.seeds import generator
from envgym.stats import paired_variance, smallest_detectable_effect, task_mean_variance

MAX_STEPS_SHOWN = 8
"""Train steps whose episodes are shown, evenly spread, the first and the last among them."""
MAX_EPISODES_PER_STEP = 16
MAX_EPISODES_PER_EVALUATION = 24


def write_run_report(run: RunDirectory) -> Path:
    """Write `report.html` into the run directory and return its path."""
    path = run.path / "report.html"
    write_report(report_of_run(run), path)
    return path


def report_of_run(run: RunDirectory) -> ReportData:
    """Gather everything a report shows of a run."""
    return ReportData(
        meta=_meta(run),
        metrics=tuple(
            build_metric_row(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
            for row in run.metrics()
        ),
        evaluations=evaluations_of_run(run),
        comparisons=comparisons_of_run(run),
        episodes=tuple(_episodes(run)),
    )


def evaluations_of_run(run: RunDirectory) -> tuple[EvaluationData, ...]:
    """Return every evaluation with its intervals, by step and label."""
    return tuple(evaluation_data(data) for data in sorted(run.evals(), key=lambda data: (data["step"], data["label"])))


def comparisons_of_run(run: RunDirectory) -> tuple[ComparisonData, ...]:
    """Compare the first and the last evaluation of every label that has two; the one on most tasks comes first."""
    evals = sorted(run.evals(), key=lambda data: (data["label"], data["step"]))
    found: list[tuple[int, ComparisonData]] = []
    for label in dict.fromkeys(data["label"] for data in evals):
        same = [data for data in evals if data["label"] == label]
        if len(same) < 2:
            continue
        first, last = same[0], same[-1]
        comparison = build_comparison(
            label=label,
            before_step=first["step"],
            before=_successes(first),
            after_step=last["step"],
            after=_successes(last),
            rng=generator("comparison", label),
        )
        found.append((-len(first["rewards"]), comparison))
    return tuple(comparison for _, comparison in sorted(found, key=lambda pair: pair[0]))


def evaluation_data(data: Mapping[str, Any]) -> EvaluationData:
    """Turn an evaluation's JSON into what a report shows; equal records give equal intervals."""
    return build_evaluation(
        step=data["step"],
        label=data["label"],
        greedy=data["temperature"] == 0,
        successes=_successes(data),
        rng=generator("evaluation", data["label"], data["step"]),
        endings={Ending(ending): count for ending, count in data["endings"].items()},
        costs=data["costs"],
    )


def _successes(data: Mapping[str, Any]) -> dict[str, list[bool | None]]:
    return {
        task_id: [None if reward is None else reward >= data["success_at"] for reward in rewards]
        for task_id, rewards in data["rewards"].items()
    }


def _meta(run: RunDirectory) -> Meta:
    config = run.config
    seconds = sum(row.get("time/step_s", 0.0) for row in run.metrics()) + sum(data["seconds"] for data in run.evals())
    return Meta(
        name=run.name,
        env_ids=tuple(env["id"] for env in config["envs"]),
        model=config["model"]["name"],
        recipe=config.get("recipe", ""),
        agent=config["agent"]["name"],
        seeds=(config["run"]["seed"],),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        duration_s=seconds,
        versions=run.versions,
        settings=yaml.safe_dump(config, sort_keys=False),
        declared=declare(config["evaluation"]["tasks"], config["evaluation"]["samples"]),
    )


def declare(num_tasks: int, samples_per_task: int) -> Declared:
    """Say what two evaluations on the same tasks could find.

    With success near one half, half of the variance between tasks, and pairing gaining nothing (at one sample a task
    the first is the worst case, and the second does not matter).
    """
    variance = task_mean_variance(0.5, samples_per_task, 0.5)
    effect = smallest_detectable_effect(num_tasks, paired_variance(variance, variance, 0.0))
    return Declared(
        num_tasks=num_tasks, samples_per_task=samples_per_task, num_seeds=1, smallest_detectable_effect=effect
    )


def _episodes(run: RunDirectory) -> list[EpisodeData]:
    steps = run.episode_steps(label=TRAIN)
    if len(steps) > MAX_STEPS_SHOWN:
        last = len(steps) - 1
        steps = [steps[round(place * last / (MAX_STEPS_SHOWN - 1))] for place in range(MAX_STEPS_SHOWN)]
    shown: list[EpisodeData] = []
    for step in steps:
        shown.extend(_shown(run.episodes([step], label=TRAIN)[:MAX_EPISODES_PER_STEP], source=TRAIN))
    for label in dict.fromkeys(data["label"] for data in run.evals()):
        name = label.replace("/", "_")
        for step in run.episode_steps(label=name):
            rows = run.episodes([step], label=name)[:MAX_EPISODES_PER_EVALUATION]
            shown.extend(_shown(rows, source=label))
    return shown


def _shown(rows: Sequence[Mapping[str, Any]], *, source: str) -> list[EpisodeData]:
    """Return the episodes of some rows of the table, with the advantages that training gave them."""
    row_of = {(row["tree_id"], row["leaf"]): row for row in rows}
    shown: list[EpisodeData] = []
    for tree in trees_of(rows):
        for episode in trajectories(tree):
            row = row_of.get((tree.id, episode.leaf))
            if row is None:
                continue
            given = json.loads(row["advantages"]) if row["advantages"] else []
            advantages = [tuple(entry) if isinstance(entry, list) else entry for entry in given]
            shown.append(
                build_episode(episode, step=row["step"], source=source, trained=bool(advantages), advantages=advantages)
            )
    return shown
