"""The headline numbers of an evaluation."""

from envgym.agents.evaluation.play import EvalRecord
from envgym.report.from_run import evaluation_data
from envgym.trainer.metrics.update import Metrics


def evaluation_metrics(record: EvalRecord) -> Metrics:
    """Return the headline numbers of an evaluation."""
    data = evaluation_data(record.to_json())
    best = data.success.valid or data.success.as_failure
    return {
        "success": best.value,
        "success_low": best.interval.low,
        "success_high": best.interval.high,
        "tasks": float(best.num_tasks),
        "invalid": float(data.success.num_invalid),
        "seconds": record.seconds,
        **record.metrics,
    }
