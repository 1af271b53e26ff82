"""Runs side by side, and one task at several steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envgym.errors import EnvgymError
from envgym.runs.changes import leaves_of
from envgym.viewer.clip import Json
from envgym.viewer.index import EpisodeColumns
from envgym.viewer.query import EpisodeQuery, episode_rows, find_episodes
from envgym.viewer.viewed_run import ViewedRun

_MAX_EPISODES = 2_000
"""Of a task, over all steps."""


def compare_runs(runs: Sequence[ViewedRun]) -> Json:
    """Return the settings that differ between runs, and the last value of every metric in each.

    Raises: RunError: the settings of a run cannot be read.
    """
    leaves = [leaves_of(run.run.config) for run in runs]
    keys = sorted({key for leaf in leaves for key in leaf if key not in ("run.directory", "run.name")})
    differing = [key for key in keys if any(leaf.get(key) != leaves[0].get(key) or key not in leaf for leaf in leaves)]
    last = [_last_metrics(run) for run in runs]
    return {
        "settings": [{"key": key, "values": [_shown(leaf, key) for leaf in leaves]} for key in differing],
        "num_equal": len(keys) - len(differing),
        "metrics": [
            {"key": key, "values": [values.get(key) for values in last]}
            for key in dict.fromkeys(key for values in last for key in values)
        ],
    }


def _shown(leaves: dict[str, Any], key: str) -> Json:
    return {"value": leaves[key]} if key in leaves else {}


def _last_metrics(run: ViewedRun) -> dict[str, tuple[int, float]]:
    """Return metric -> step and value where it was last finite."""
    last: dict[str, tuple[int, float]] = {}
    try:
        rows = run.metrics()
    except EnvgymError:
        return last  # the summary of the run says why
    for row in rows:
        for key, value in row["values"].items():
            if value is not None:
                last[key] = (row["step"], value)
    return last


def task_at_steps(columns: EpisodeColumns, source: str, task: str) -> Json:
    """Return the episodes of a task by step, with their mean reward over the valid ones."""
    positions = find_episodes(columns, EpisodeQuery(source=source, task=task))
    task_ids = columns.table["task_id"].take(positions).to_pylist()
    of_task = [position for position, name in zip(positions.tolist(), task_ids, strict=True) if name == task]
    rows = episode_rows(columns, of_task[:_MAX_EPISODES])
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    return {
        "task_id": task,
        "source": source,
        "steps": [
            {"step": step, "mean": _mean([row["reward"] for row in of_step]), "episodes": of_step}
            for step, of_step in sorted(steps.items())
        ],
    }


def _mean(rewards: Sequence[float | None]) -> float | None:
    valid = [reward for reward in rewards if reward is not None]
    return float(np.mean(valid)) if valid else None
