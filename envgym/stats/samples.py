"""Samples keyed by task: the one input of this package, and its checks."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from envgym.errors import InvalidInput, sentence

FloatArray: TypeAlias = npt.NDArray[np.float64]

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""Task id -> the values (success, score or reward) of its samples; a bool counts as 0 or 1."""


def successes_of(rewards: Mapping[str, Sequence[float | None]], success_at: float) -> dict[str, list[bool | None]]:
    """Return task id -> whether the reward of each sample is at least `success_at`; None stays None: it is invalid."""
    return {
        task_id: [None if reward is None else reward >= success_at for reward in of_task]
        for task_id, of_task in rewards.items()
    }


def task_means(samples: Samples) -> dict[str, float]:
    """Return the mean value of each task.

    Raises:
        InvalidInput: no task, a task without samples, or a value that is not finite.
    """
    if not samples:
        raise InvalidInput(
            sentence("samples", "hold at least one task", "none", where="statistics", do="evaluate first")
        )
    means: dict[str, float] = {}
    for task_id, values in samples.items():
        if len(values) == 0:
            text = sentence("a task", "have a sample", "none", where=f"task {task_id}", do="leave the task out")
            raise InvalidInput(text)
        mean = float(np.mean(np.asarray(values, dtype=np.float64)))
        if not np.isfinite(mean):
            do = "mark invalid samples as None and use bound_invalid"
            raise InvalidInput(sentence("sample values", "be finite", list(values), where=f"task {task_id}", do=do))
        means[task_id] = mean
    return means


def count_samples(samples: Samples) -> int:
    """Return the number of samples over all tasks."""
    return sum(len(values) for values in samples.values())
