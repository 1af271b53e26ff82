"""Success rates: pass@k (one of k samples succeeds), pass^k (all k succeed), and bounds where samples are invalid."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from envgym.errors import InvalidInput
from envgym.stats.intervals import (
    Estimate,
    Samples,
    count_samples,
    estimate_share,
    estimate_success,
    task_means,
)

ValueT = TypeVar("ValueT", bound=float)
SampleT = TypeVar("SampleT")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidBounds:
    """A success rate over the valid samples, between what it were had every invalid sample failed or succeeded."""

    valid: Estimate | None
    """Over the valid samples of the tasks that have one; None where no sample is valid."""
    as_failure: Estimate
    """Every invalid sample counted as 0."""
    as_success: Estimate
    """Every invalid sample counted as 1."""
    num_invalid: int
    num_samples: int
    """Valid and invalid."""


def bound_invalid(samples: Mapping[str, Sequence[float | None]]) -> InvalidBounds:
    """Return the success rate over valid samples and its two bounds: as_failure <= valid <= as_success.

    Args:
        samples: values in [0, 1] by task id; None marks an invalid sample.
    """
    valid = valid_samples(samples)
    num_samples = sum(len(values) for values in samples.values())
    return InvalidBounds(
        as_failure=estimate_success(_filled(samples, 0.0)),
        as_success=estimate_success(_filled(samples, 1.0)),
        valid=estimate_success(valid) if valid else None,
        num_invalid=num_samples - count_samples(valid),
        num_samples=num_samples,
    )


def valid_samples(samples: Mapping[str, Sequence[ValueT | None]]) -> dict[str, list[ValueT]]:
    """Return the valid samples of the tasks that have one."""
    valid = {task_id: [value for value in values if value is not None] for task_id, values in samples.items()}
    return {task_id: values for task_id, values in valid.items() if values}


def invalid_share(samples: Mapping[str, Sequence[object | None]]) -> float:
    """Return the share of the samples that are invalid; 0.0 where there is none."""
    values = [value for of_task in samples.values() for value in of_task]
    return values.count(None) / max(len(values), 1)


def tasks_with(samples: Mapping[str, Sequence[SampleT]], count: int) -> dict[str, Sequence[SampleT]]:
    """Return the tasks that have at least `count` samples."""
    return {task_id: values for task_id, values in samples.items() if len(values) >= count}


def powers_of_2(most: int) -> list[int]:
    """Return 1, 2, 4 ... up to `most`: the k of pass@k by default."""
    return [2**exponent for exponent in range(most.bit_length())]


def _filled(samples: Mapping[str, Sequence[float | None]], value: float) -> dict[str, list[float]]:
    return {task_id: [value if v is None else v for v in values] for task_id, values in samples.items()}


def pass_at_k(num_samples: int, num_successes: int, k: int) -> float:
    """Return the chance that k of n samples, drawn without replacement, hold a success: 1 - C(n-c, k) / C(n, k).

    Exact: integers until the one division. Source: 2107.03374.

    Raises:
        InvalidInput: k outside [1, num_samples], or num_successes outside [0, num_samples].
    """
    _check(num_samples, num_successes, k)
    draws = math.comb(num_samples, k)
    return (draws - math.comb(num_samples - num_successes, k)) / draws


def pass_hat_k(num_samples: int, num_successes: int, k: int) -> float:
    """Return the chance that k of n samples, drawn without replacement, are all successes: C(c, k) / C(n, k).

    Exact: integers until the one division. Source: 2406.12045.

    Raises:
        InvalidInput: k outside [1, num_samples], or num_successes outside [0, num_samples].
    """
    _check(num_samples, num_successes, k)
    return math.comb(num_successes, k) / math.comb(num_samples, k)


def estimate_pass_rate(formula: Callable[[int, int, int], float], samples: Samples, k: int) -> Estimate:
    """Return pass@k or pass^k averaged over tasks, with Wilson's interval clustered by task.

    Were all tasks alike, each disjoint group of k samples of a task would be an independent trial.

    Args:
        formula: `pass_at_k` or `pass_hat_k`.
        samples: successes (bool, or exactly 0 and 1), at least k of each task.
        k: samples drawn.
    """
    rates = [formula(num_samples, num_successes, k) for num_samples, num_successes in _counts(samples)]
    num_trials = sum(len(values) // k for values in samples.values())
    return estimate_share(rates, num_samples=count_samples(samples), num_trials=num_trials)


def _counts(samples: Samples) -> list[tuple[int, int]]:
    """Return (samples, successes) of each task."""
    task_means(samples)  # refuses what is empty or not finite
    for task_id, values in samples.items():
        if any(value not in (0, 1) for value in values):
            do = "say which score counts as success"
            raise InvalidInput.of("successes", "be 0 or 1", list(values), where=f"task {task_id}", do=do)
    return [(len(values), int(sum(values))) for values in samples.values()]


def _check(num_samples: int, num_successes: int, k: int) -> None:
    must, do = (
        f"lie in [1, {num_samples}], the number of samples",
        "draw more samples per task, or lower k",
    )
    InvalidInput.unless(1 <= k <= num_samples, "k", must, k, where="pass@k", do=do)
    if not 0 <= num_successes <= num_samples:
        must = f"lie in [0, {num_samples}], the number of samples"
        raise InvalidInput.of("successes", must, num_successes, where="pass@k", do="count them again")
