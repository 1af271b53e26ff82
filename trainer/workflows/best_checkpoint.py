"""`run.keep_best`: which evaluation is the best so far, and the checkpoint that is kept for it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from envgym.errors import SettingsError, suggestion
from envgym.runs.best import BestCheckpoint, read_best, write_best
from envgym.trainer.learner.checkpoint import checkpoint_of_step
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.settings import TrainRunSettings


def mean_over_envs(metrics: Sequence[Metrics], name: str) -> float:
    """Return the mean of a metric over the evaluations of one step, one per environment; NaN where one lacks it."""
    values = [own.get(name, math.nan) for own in metrics]
    return sum(values) / len(values) if values else math.nan


class BestCheckpointKeeper:
    """Compares the evaluations of a run, and names the best checkpoint in the run's directory."""

    def __init__(self, settings: TrainRunSettings, run: Path, *, max_invalid_rate: float) -> None:
        """Go on with the checkpoint that the run has named, where it is of the same metric and still exists.

        An evaluation with a larger share of invalid episodes than `max_invalid_rate` is no candidate.
        """
        assert settings.keep_best is not None, "the setting names a metric"
        self._metric, self._mode, self._run = settings.keep_best, settings.keep_best_mode, run
        self._max_invalid_rate, self._is_known = max_invalid_rate, False
        best = read_best(run)
        is_same = best is not None and (best.metric, best.mode) == (self._metric, self._mode)
        self._best = best if best is not None and is_same and checkpoint_of_step(run, best.step).exists() else None

    @property
    def step(self) -> int | None:
        """Train steps of the best checkpoint; None: there is none yet."""
        return None if self._best is None else self._best.step

    def candidate(self, metrics: Sequence[Metrics], step: int) -> BestCheckpoint | None:
        """Return the checkpoint of `step` where its evaluation is better than all before; None where it is not.

        Args:
            metrics: of the evaluations after `step` train steps, one mapping per environment.
            step: train steps done.

        Raises: SettingsError: the first evaluation has no such metric.
        """
        if not self._is_known:
            self._check_metric(metrics)
        if any(own["invalid_share"] > self._max_invalid_rate for own in metrics):
            return None
        value = mean_over_envs(metrics, self._metric)
        is_better = math.isfinite(value) if self._best is None else self._best.is_beaten_by(value)
        return BestCheckpoint(step=step, metric=self._metric, mode=self._mode, value=value) if is_better else None

    def keep(self, best: BestCheckpoint) -> None:
        """Name a checkpoint, which is on disk, as the best."""
        write_best(self._run, best)
        self._best = best

    def _check_metric(self, metrics: Sequence[Mapping[str, float]]) -> None:
        names = sorted({name for own in metrics for name in own})
        do = f"{suggestion(self._metric, names)}; evaluation.metrics adds others"
        must = "be a metric of the evaluations"
        SettingsError.unless(self._metric in names, "run.keep_best", must, self._metric, where="run.keep_best", do=do)
        self._is_known = True
