"""The report of a run directory: read what was recorded, compare before and after, pick episodes to show.

Training runs and evaluations write the same layout, and their settings the same sections.
"""

import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.turns import Ending
from envgym.errors import RunError, UnknownName, near_names
from envgym.report.build import build_comparison, build_episode, build_evaluation, build_metric_row
from envgym.report.bundle import write_report
from envgym.report.data import (
    TRAIN,
    ComparisonData,
    Declared,
    EpisodeData,
    EvaluationData,
    Meta,
    MetricRow,
    ReportData,
    ToolFailure,
    TreeData,
)
from envgym.report.trees import build_tree, view_id
from envgym.runs.best import read_best
from envgym.runs.directory import RunDirectory, file_label, reading
from envgym.runs.episodes import TokenScores, trees_of
from envgym.runs.wall_time import read_wall_time
from envgym.seeds import generator
from envgym.stats import minimum_detectable_effect, paired_variance, successes_of, task_mean_variance
from envgym.stats.rates import valid_samples

MAX_STEPS_SHOWN = 8
"""Train steps whose episodes are shown, evenly spread, the first and the last among them."""
MAX_EPISODES_PER_STEP = 16
"""Of a train step; of an evaluation all are shown."""
MAX_EPISODE_TOKENS = 4_000_000
"""Of all episodes in a report together: about 20 MB of the page. Beyond it those with the lowest rewards are shown."""
MAX_TREES_PER_STEP = 2
MAX_TREE_TOKENS = 60_000
"""Of all trees in a report together: about 2 MB of the page."""
_OFFERED = 3
"""Ids that are offered for one that is not known."""


def write_run_report(run: RunDirectory, path: Path | None = None) -> Path:
    """Write the report, by default as `report.html` into the run directory, and return its path."""
    path = path or run.path / "report.html"
    write_report(report_of_run(run), path)
    return path


def report_of_run(run: RunDirectory) -> ReportData:
    """Gather everything a report shows of a run. Raises: RunError: some of it cannot be read."""
    with reading(str(run.path)):
        episodes, trees, recorded = _samples(run)
        return ReportData(
            meta=_meta(run),
            metrics=tuple(map(metric_row, run.metrics())),
            evaluations=evaluations_of_run(run),
            comparisons=comparisons_of_run(run),
            warm_start=run.warm_start(),
            episodes=tuple(episodes),
            num_recorded=recorded,
            trees=tuple(trees),
        )


def metric_row(row: Mapping[str, float]) -> MetricRow:
    """Turn a line of `metrics.jsonl` into what a report shows."""
    return build_metric_row(int(row["step"]), {name: value for name, value in row.items() if name != "step"})


def evaluations_of_run(run: RunDirectory) -> tuple[EvaluationData, ...]:
    """Return every evaluation with its intervals, by step and label."""
    return tuple(evaluation_data(data) for data in sorted(run.evals(), key=lambda data: (data["step"], data["label"])))


def comparisons_of_run(run: RunDirectory) -> tuple[ComparisonData, ...]:
    """Compare the first and the last evaluation of every label that has two; the one on most tasks comes first.

    Two without a task that has a valid sample in both are not compared.
    """
    evals = sorted(run.evals(), key=lambda data: (data["label"], data["step"]))
    comparisons: list[tuple[int, ComparisonData]] = []
    for label in dict.fromkeys(data["label"] for data in evals):
        same = [data for data in evals if data["label"] == label]
        if len(same) < 2:
            continue
        first, last = same[0], same[-1]
        before, after = _successes(first), _successes(last)
        if not valid_samples(before).keys() & valid_samples(after).keys():
            continue
        comparison = build_comparison(
            label=label,
            before_step=first["step"],
            before=before,
            after_step=last["step"],
            after=after,
            rng=generator("comparison", label),
        )
        comparisons.append((-len(first["rewards"]), comparison))
    return tuple(comparison for _, comparison in sorted(comparisons, key=lambda pair: pair[0]))


def evaluation_data(data: Mapping[str, Any]) -> EvaluationData:
    """Turn an evaluation's JSON into what a report shows."""
    return build_evaluation(
        step=data["step"],
        label=data["label"],
        greedy=data["temperature"] == 0,
        successes=_successes(data),
        endings={Ending(ending): count for ending, count in data["endings"].items()},
        costs=data["costs"],
        tool_failures=[ToolFailure(**failure) for failure in data.get("tool_failures", ())],
    )


def _successes(data: Mapping[str, Any]) -> dict[str, list[bool | None]]:
    return successes_of(data["rewards"], data["success_at"])


def _meta(run: RunDirectory) -> Meta:
    config = run.config
    processes, best = read_wall_time(run.path), read_best(run.path)
    return Meta(
        name=run.name,
        env_ids=tuple(env["id"] for env in config["envs"]),
        model=config["model"]["name"],
        recipe=config.get("recipe", ""),
        agent=config["agent"]["name"],
        seeds=(config["run"]["seed"],),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        device=", then ".join(dict.fromkeys(process.device for process in processes if process.device)),
        duration_s=sum(process.seconds for process in processes) if processes else None,
        versions=run.versions,
        settings=yaml.safe_dump(config, sort_keys=False),
        declared=declare(config["evaluation"]["tasks"], config["evaluation"]["samples"]),
        best_checkpoint="" if best is None else best.words,
    )


def declare(num_tasks: int, samples_per_task: int) -> Declared:
    """Return the minimum detectable effect of two evaluations on the same tasks, with what it rests on.

    With success near one half, half of the variance between tasks, and pairing gaining nothing (at one sample a task
    the first is the worst case, and the second does not matter).
    """
    variance = task_mean_variance(0.5, samples_per_task, 0.5)
    effect = minimum_detectable_effect(num_tasks, paired_variance(variance, variance, 0.0))
    return Declared(
        num_tasks=num_tasks, samples_per_task=samples_per_task, num_seeds=1, minimum_detectable_effect=effect
    )


def tree_of_run(run: RunDirectory, name: str) -> ReportData:
    """Gather what the page of one tree shows.

    Args:
        run: where it was saved.
        name: the tree's id, with source and step before it (`TreeData.id`) where the run has several of that id.

    Raises:
        UnknownName: the run saved no such tree.
        RunError: it saved several, or none at all; or what it saved cannot be read.
    """
    sources = sources_of_run(run)
    saved = run.tree_ids()
    full_ids = [view_id(sources.get(label, label), step, tree_id) for label, step, tree_id in saved]
    matches = [index for index, full in enumerate(full_ids) if name in (full, saved[index][2])]
    if not saved:
        raise _no_trees(run)
    if not matches:
        raise _unknown_tree(name, [(full, tree_id) for full, (*_, tree_id) in zip(full_ids, saved, strict=True)], run)
    if len(matches) > 1:
        got = f"{name!r}, of which it has {len(matches)}"
        do = f"choose one of: {', '.join(full_ids[index] for index in matches)}"
        raise RunError.of("tree", "be one of the run", got, where="--tree", do=do)
    label, step, tree_id = saved[matches[0]]
    with reading(str(run.path)):
        (tree,) = trees_shown(run.episodes([step], label=label, tree_id=tree_id), source=sources.get(label, label))
        return ReportData(meta=_meta(run), trees=(tree,))


def _no_trees(run: RunDirectory) -> RunError:
    last = run.config.get("run", {}).get("steps")  # an evaluation has none
    if any(last in (None, data["step"]) for data in run.evals()):
        got, do = "none", "run it again; run.save_episodes_every must be above 0 for those of training"
    else:
        got, do = "none yet", "no episodes are recorded before the first evaluation or train step is over"
    return RunError.of("run", "have episodes", got, where=f"--tree, {run.path}", do=do)


def _unknown_tree(name: str, saved: Sequence[tuple[str, str]], run: RunDirectory) -> UnknownName:
    """Offer full ids, the nearest first, whichever of its two forms an id was meant in."""
    full_ids: dict[str, list[str]] = {}
    for full, tree_id in saved:
        full_ids.setdefault(full, []).append(full)
        full_ids.setdefault(tree_id, []).append(full)
    near = list(dict.fromkeys(full for close in near_names(name, full_ids) for full in full_ids[close]))[:_OFFERED]
    do = f"did you mean {' or '.join(near)}?"
    if not near:
        do = f"choose one of {len(saved)}, such as {' or '.join(full for full, _ in saved[:_OFFERED])}"
    return UnknownName.of("tree", "be a known name", repr(name), where=f"--tree, {run.path}", do=do)


def write_run_tree(run: RunDirectory, name: str, path: Path | None = None) -> Path:
    """Write the page of one tree, by default into `trees/` of the run directory, and return its path."""
    data = tree_of_run(run, name)
    path = path or run.path / "trees" / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', data.trees[0].id)}.html"
    write_report(data, path, view="tree")
    return path


def sources_of_run(run: RunDirectory) -> dict[str, str]:
    """Return label of a file of episodes -> what made them: `TRAIN`, or an evaluation."""
    return {TRAIN: TRAIN, **{file_label(data["label"]): data["label"] for data in run.evals()}}


def _samples(run: RunDirectory) -> tuple[list[EpisodeData], list[TreeData], dict[str, int]]:
    """Pick the episodes and the trees to show; return with them how many episodes each source has."""
    episodes: list[EpisodeData] = []
    trees: list[list[TreeData]] = []
    sources = sources_of_run(run)
    for label, source in sources.items():
        for step in _spread(run.episode_steps(label=label)):
            rows = run.episodes([step], label=label)
            episodes.extend(_episodes(rows[:MAX_EPISODES_PER_STEP] if source == TRAIN else rows, source=source))
            trees.append(trees_shown(_branching(rows), source=source))
    recorded = {sources[label]: count for label, count in run.num_episodes().items() if label in sources}
    return _within_tokens(episodes), _within_budget(trees), recorded


def _within_tokens(episodes: Sequence[EpisodeData]) -> list[EpisodeData]:
    """Keep episodes of up to `MAX_EPISODE_TOKENS` in all, in their order: the invalid and the worst before others."""
    left = MAX_EPISODE_TOKENS
    indices: set[int] = set()
    ranked = sorted(range(len(episodes)), key=lambda at: -math.inf if (r := episodes[at].reward) is None else r)
    for at in ranked:
        segments = (*episodes[at].prompt, *(segment for turn in episodes[at].turns for segment in turn.segments))
        tokens = sum(len(segment.token_ids) for segment in segments)
        if tokens <= left:
            left -= tokens
            indices.add(at)
    return [episodes[at] for at in sorted(indices)]


def _spread(steps: Sequence[int]) -> list[int]:
    """Return up to `MAX_STEPS_SHOWN` of the steps, evenly spread, the first and the last among them."""
    if len(steps) <= MAX_STEPS_SHOWN:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (MAX_STEPS_SHOWN - 1))] for index in range(MAX_STEPS_SHOWN)]


def _branching(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the first trees that branch; of a chain the episode shows all there is."""
    tree_ids: list[str] = []
    for row in rows:
        if row["tree"] is not None and len(tree_ids) < MAX_TREES_PER_STEP:
            parents = [node["parent"] for node in json.loads(row["tree"])["nodes"]]
            if len(set(parents)) < len(parents):
                tree_ids.append(row["tree_id"])
    return [row for row in rows if row["tree_id"] in tree_ids]


def _within_budget(trees: Sequence[Sequence[TreeData]]) -> list[TreeData]:
    """Keep trees of up to `MAX_TREE_TOKENS` in all, the first of every step before any second; one in any case."""
    ranked = sorted((rank, step) for step, of_step in enumerate(trees) for rank in range(len(of_step)))
    left = MAX_TREE_TOKENS
    places: set[tuple[int, int]] = set()
    for rank, step in ranked:
        tokens = sum(len(segment.token_ids) for node in trees[step][rank].nodes for segment in node.content.segments)
        if tokens <= left or not places:
            left -= tokens
            places.add((step, rank))
    return [trees[step][rank] for step, rank in sorted(places)]


def trees_shown(rows: Sequence[Mapping[str, Any]], *, source: str) -> list[TreeData]:
    """Return the trees of some rows of the table, with the advantages that training gave their episodes."""
    trees: list[TreeData] = []
    for tree in trees_of(rows):
        own = [row for row in rows if row["tree_id"] == tree.id]
        advantages = {row["leaf"]: entries for row in own if (entries := advantages_of(row))}
        dropped = next((row["dropped"] for row in own if row["dropped"]), "")
        scores = {row["leaf"]: entry for row in own if (entry := token_scores_of(row))}
        trees.append(
            build_tree(
                tree,
                step=own[0]["step"],
                source=source,
                advantages=advantages,
                token_scores=scores,
                dropped=dropped,
            )
        )
    return trees


def _episodes(rows: Sequence[Mapping[str, Any]], *, source: str) -> list[EpisodeData]:
    row_of = {(row["tree_id"], row["leaf"]): row for row in rows}
    episodes: list[EpisodeData] = []
    for tree in trees_of(rows):
        for episode in trajectories(tree):
            row = row_of.get((tree.id, episode.leaf))
            if row is not None:
                episodes.append(episode_shown(episode, row, source=source))
    return episodes


def episode_shown(episode: Trajectory, row: Mapping[str, Any], *, source: str) -> EpisodeData:
    """Return an episode as it is shown, with what training knew of it by its row of the table."""
    advantages = advantages_of(row)
    return build_episode(
        episode,
        step=row["step"],
        source=source,
        trained=bool(advantages),
        advantages=advantages,
        token_scores=token_scores_of(row),
    )


def token_scores_of(row: Mapping[str, Any]) -> TokenScores:
    """Return the learner's scores of an episode's tokens; empty if it computed none, or an older run stored none."""
    text = row.get("token_scores")
    return json.loads(text) if text else {}


def advantages_of(row: Mapping[str, Any]) -> list[float | tuple[float, ...]]:
    """Return the advantages of an episode, by node of its path; empty if training did not learn from it."""
    entries = json.loads(row["advantages"]) if row["advantages"] else []
    return [tuple(entry) if isinstance(entry, list) else entry for entry in entries]
