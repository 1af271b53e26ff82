"""The inter-quartile mean of rewards."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import rewards_by_task
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.settings import Settings
from envgym.stats import Estimate, estimate_interquartile_mean


class Iqm(Settings):
    """Mean of the middle half of the rewards of all valid samples. Source: 2108.13264."""

    fixed_tasks: bool = False
    """The interval is for other samples of the same tasks (stratified bootstrap, as in rliable), which needs two
    samples per task; false: for other tasks of the same source, as all others here."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `iqm`."""
        samples = rewards_by_task(episodes)
        rng = generator("metric", "iqm")
        return {"iqm": estimate_interquartile_mean(samples, rng=rng, fixed_tasks=self.fixed_tasks)} if samples else {}
