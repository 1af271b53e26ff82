"""Bounds on a success rate when some samples are invalid (an infrastructure failure, not the policy's doing)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envgym.stats.intervals import DEFAULT_LEVEL, DEFAULT_NUM_RESAMPLES, Estimate, estimate_success


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

    @property
    def invalid_rate(self) -> float:
        """Share of the samples that is invalid."""
        return self.num_invalid / self.num_samples


def bound_invalid(
    samples: Mapping[str, Sequence[float | None]],
    *,
    rng: np.random.Generator,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> InvalidBounds:
    """Return the success rate over valid samples and its two bounds: as_failure <= valid <= as_success.

    Args:
        samples: values in [0, 1] by task id; None marks an invalid sample.
    """
    kept = {task_id: [value for value in values if value is not None] for task_id, values in samples.items()}
    valid = {task_id: values for task_id, values in kept.items() if values}
    num_samples = sum(len(values) for values in samples.values())

    def estimate(filled: Mapping[str, Sequence[float]]) -> Estimate:
        return estimate_success(filled, rng=rng, level=level, num_resamples=num_resamples)

    return InvalidBounds(
        as_failure=estimate(_filled(samples, 0.0)),
        as_success=estimate(_filled(samples, 1.0)),
        valid=estimate(valid) if valid else None,
        num_invalid=num_samples - sum(len(values) for values in kept.values()),
        num_samples=num_samples,
    )


def _filled(samples: Mapping[str, Sequence[float | None]], value: float) -> dict[str, list[float]]:
    """Return the samples with `value` in place of each invalid one."""
    return {task_id: [value if v is None else v for v in values] for task_id, values in samples.items()}
