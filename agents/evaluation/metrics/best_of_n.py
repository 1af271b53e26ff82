"""Best of n: the largest reward of n samples."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import rewards_by_task
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.settings import Settings
from envgym.stats import Estimate, best_of_n, estimate_mean
from envgym.stats.rates import powers_of_2, tasks_with


class BestOfN(Settings):
    """Expected largest reward of n samples, over the tasks that have n valid ones: what choosing by reward would earn.

    It is oracle-selected. The search `best_of` chooses by what the agent can see.
    """

    n: tuple[int, ...] = ()
    """Samples drawn; none: 1, 2, 4 ... up to the samples of a task. An n that no task has is left out."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `best_of_<n>`."""
        rewards = rewards_by_task(episodes)
        most = max(map(len, rewards.values()), default=0)
        return {f"best_of_{n}": _estimate(rewards, n) for n in self.n or powers_of_2(most) if 1 <= n <= most}


def _estimate(rewards: dict[str, list[float]], n: int) -> Estimate:
    best = {task: [best_of_n(own, n)] for task, own in tasks_with(rewards, n).items()}
    return estimate_mean(best, rng=generator("metric", "best_of_n", n))
