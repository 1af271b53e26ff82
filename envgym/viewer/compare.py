"""Runs side by side, and one task at several steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envgym.errors import EnvgymError
from envgym.run_changes import leaves_of
from envgym.viewer.clip import Json
from envgym.viewer.index import EpisodeColumns
from envgym.viewer.query import EpisodeQuery, episode_row, find_episodes
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
    found: dict[str, tuple[int, float]] = {}
    try:
        rows = run.metrics()
    except EnvgymError:
        return found  # the summary of the run says why
    for row in rows:
        for key, value in row["values"].items():
            if value is not None:
                found[key] = (row["step"], value)
    return found


def task_at_steps(columns: EpisodeColumns, source: str, task: str) -> Json:
    """Return the episodes of a task by step, with their mean reward over the valid ones."""
    found = find_episodes(columns, EpisodeQuery(source=source, task=task))
    values, codes = columns.coded["task_id"]
    same = [at for at in found.tolist() if values[codes[at]] == task][:_MAX_EPISODES]
    steps: dict[int, list[int]] = {}
    for at in same:
        steps.setdefault(int(columns.numbers["step"][at]), []).append(at)
    return {
        "task_id": task,
        "source": source,
        "steps": [
            {
                "step": step,
                "mean": _mean(columns.numbers["reward"][places]),
                "episodes": [episode_row(columns, at) for at in places],
            }
            for step, places in sorted(steps.items())
        ],
    }


def _mean(rewards: Any) -> float | None:  # an array
    valid = rewards[~np.isnan(rewards)]
    return float(valid.mean()) if len(valid) else None
