"""pass^k: all of k samples succeed."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import DrawSettings, successes_by_task
from envgym.core.trajectory import Trajectory
from envgym.stats import Estimate, estimate_pass_rate, pass_hat_k
from envgym.stats.rates import tasks_with


class PassHatKMetric(DrawSettings):
    """Chance that all of k samples succeed, over the tasks that have k valid samples. Source: 2406.12045."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `pass^<k>`."""
        samples = successes_by_task(episodes, self.success_at)
        return {f"pass^{k}": estimate_pass_rate(pass_hat_k, tasks_with(samples, k), k) for k in self.ks(samples)}
