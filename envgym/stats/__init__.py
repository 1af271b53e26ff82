"""Statistics of evaluations: pure functions of samples keyed by task, with numpy and without any global randomness.

The unit of evidence is the task: every task counts the same, however many samples it has, and every interval is that of
whole tasks. This package knows nothing of runs, files or models.
"""

from envgym.stats.aggregates import best_of_n, estimate_interquartile_mean, majority_success
from envgym.stats.intervals import (
    DEFAULT_LEVEL,
    Estimate,
    Interval,
    IntervalMethod,
    Samples,
    bootstrap_interval,
    estimate_mean,
    estimate_share,
    estimate_success,
    successes_of,
    task_means,
    wilson_interval,
)
from envgym.stats.multiple import HolmStep, correct_by_holm
from envgym.stats.paired import (
    PairedComparison,
    PValueMethod,
    adjusted_variance,
    adjusted_wald_interval,
    compare_paired,
    paired_differences,
    sign_flip_p_value,
)
from envgym.stats.power import minimum_detectable_effect, paired_variance, required_tasks, task_mean_variance
from envgym.stats.rates import InvalidBounds, bound_invalid, estimate_pass_rate, pass_at_k, pass_hat_k

__all__ = [
    "DEFAULT_LEVEL",
    "Estimate",
    "HolmStep",
    "Interval",
    "IntervalMethod",
    "InvalidBounds",
    "PValueMethod",
    "PairedComparison",
    "Samples",
    "adjusted_variance",
    "adjusted_wald_interval",
    "best_of_n",
    "bootstrap_interval",
    "bound_invalid",
    "compare_paired",
    "correct_by_holm",
    "estimate_interquartile_mean",
    "estimate_mean",
    "estimate_pass_rate",
    "estimate_share",
    "estimate_success",
    "majority_success",
    "minimum_detectable_effect",
    "paired_differences",
    "paired_variance",
    "pass_at_k",
    "pass_hat_k",
    "required_tasks",
    "sign_flip_p_value",
    "successes_of",
    "task_mean_variance",
    "task_means",
    "wilson_interval",
]
