"""Power of an evaluation before it is run: the minimum detectable effect, and the tasks that an effect requires.

All two-sided, by the normal approximation of a mean over tasks: effect = (z_{1-alpha/2} + z_power) sqrt(variance / n).
Three variances cover the usual questions:

- a proportion against a fixed value: `task_mean_variance(p, k, correlation)`
- two runs on different tasks: twice that
- two runs on the same tasks: `paired_variance(...)`, or the observed variance of the per-task differences
"""

import math
from statistics import NormalDist

from envgym.errors import InvalidInput

DEFAULT_ALPHA = 0.05
DEFAULT_POWER = 0.8

_NORMAL = NormalDist()


def task_mean_variance(success: float, samples_per_task: int, task_correlation: float) -> float:
    """Return the variance, over tasks, of a task's mean success: p (1-p) (r + (1-r)/k).

    Args:
        success: p, the expected success rate; 0.5 is the worst case.
        samples_per_task: k.
        task_correlation: r in [0, 1], between two samples of one task: 0 where all tasks are equally hard (k samples
            are worth k tasks), 1 where a task is always or never solved (k samples are worth one).
    """
    _check_unit("success", success)
    _check_unit("task_correlation", task_correlation)
    if samples_per_task < 1:
        raise InvalidInput.of("samples_per_task", "be at least 1", samples_per_task, where="power", do="pass e.g. 1")
    return success * (1 - success) * (task_correlation + (1 - task_correlation) / samples_per_task)


def paired_variance(variance_before: float, variance_after: float, run_correlation: float) -> float:
    """Return the variance of a task's difference between two runs: a + b - 2 r sqrt(a b).

    Args:
        variance_before: a, of a task's mean before; see `task_mean_variance`.
        variance_after: b, of a task's mean after.
        run_correlation: r in [-1, 1], between the task means of the two runs; 0 where pairing gains nothing.
    """
    if not -1 <= run_correlation <= 1:
        do = "pass a correlation"
        raise InvalidInput.of("run_correlation", "lie in [-1, 1]", run_correlation, where="power", do=do)
    _check_variance(variance_before)
    _check_variance(variance_after)
    # Cauchy-Schwarz makes it >= 0; rounding may not.
    return max(
        0.0, variance_before + variance_after - 2 * run_correlation * math.sqrt(variance_before * variance_after)
    )


def minimum_detectable_effect(
    num_tasks: int, variance: float, *, alpha: float = DEFAULT_ALPHA, power: float = DEFAULT_POWER
) -> float:
    """Return the difference that a two-sided test at `alpha` detects with probability `power`.

    Args:
        num_tasks: n.
        variance: of one task's value or difference (not of the mean).
    """
    _check_variance(variance)
    InvalidInput.unless(num_tasks >= 1, "num_tasks", "be at least 1", num_tasks, where="power", do="pass e.g. 100")
    return _z_total(alpha, power) * math.sqrt(variance / num_tasks)


def required_tasks(
    effect: float, variance: float, *, alpha: float = DEFAULT_ALPHA, power: float = DEFAULT_POWER
) -> int:
    """Return the fewest tasks at which `effect` is detectable: the inverse of `minimum_detectable_effect`."""
    _check_variance(variance)
    if not (effect > 0 and math.isfinite(effect)):
        raise InvalidInput.of("effect", "be above 0", effect, where="power", do="pass the size of a difference")
    exact = (_z_total(alpha, power) / effect) ** 2 * variance
    # The relative slack keeps an effect made by minimum_detectable_effect(n) at n tasks.
    return max(1, math.ceil(exact * (1 - 1e-12)))


def _z_total(alpha: float, power: float) -> float:
    for name, value in (("alpha", alpha), ("power", power)):
        InvalidInput.unless(0 < value < 1, name, "lie in (0, 1)", value, where="power", do="use alpha=0.05, power=0.8")
    return _NORMAL.inv_cdf(1 - alpha / 2) + _NORMAL.inv_cdf(power)


def _check_unit(name: str, value: float) -> None:
    InvalidInput.unless(0 <= value <= 1, name, "lie in [0, 1]", value, where="power", do="pass a number from 0 to 1")


def _check_variance(variance: float) -> None:
    if not (variance >= 0 and math.isfinite(variance)):
        raise InvalidInput.of("variance", "be finite and not negative", variance, where="power", do="correct it")
