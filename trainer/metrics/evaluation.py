"""The headline numbers of an evaluation."""

import math

from envgym.agents.evaluation.play import EvalRecord
from envgym.report.from_run import evaluation_data
from envgym.stats.rates import invalid_share
from envgym.trainer.metrics.update import Metrics


def evaluation_metrics(record: EvalRecord) -> Metrics:
    """Return the headline numbers of an evaluation. Success and its interval are NaN where no episode is valid."""
    success = evaluation_data(record.to_json()).success
    valid = success.valid
    value, low, high = (math.nan,) * 3 if valid is None else (valid.value, valid.interval.low, valid.interval.high)
    return {
        "success": value,
        "success_low": low,
        "success_high": high,
        "tasks": float((valid or success.as_failure).num_tasks),
        "invalid": float(success.num_invalid),
        "invalid_share": invalid_share(record.rewards),
        "seconds": record.seconds,
        **record.metrics,
    }
