"""Failures that a run has survived from one train step to the next: restarts, requests and episodes begun again."""

from envgym.runtime.processes.restarts import failure_counts
from envgym.trainer.metrics.update import Metrics


class SurvivedFailures:
    """What this process has counted since the metrics of the step before."""

    def __init__(self) -> None:
        self._before = failure_counts()

    def since_last(self) -> Metrics:
        """Return how often each happened since the last call; one that did not happen is left out."""
        counts = failure_counts()
        grown, self._before = counts - self._before, counts
        return {name: float(count) for name, count in sorted(grown.items())}
