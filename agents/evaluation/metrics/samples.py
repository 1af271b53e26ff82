"""Metrics of k samples of a task: pass@k, pass^k, maj@k and best of n."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import DrawSettings, by_task, reward_of, rewards_by_task, successes_by_task
from envgym.agents.search.scorers import answer_in
from envgym.config.settings import Settings
from envgym.core.trajectory import Trajectory
from envgym.core.turns import reaches
from envgym.seeds import generator
from envgym.stats import (
    Estimate,
    best_of_n,
    estimate_mean,
    estimate_pass_rate,
    estimate_share,
    majority_success,
    pass_at_k,
    pass_hat_k,
)
from envgym.stats.rates import powers_of_2, tasks_with


class PassAtKMetric(DrawSettings):
    """Chance that one of k samples succeeds, over the tasks that have k valid samples. Source: 2107.03374."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        samples = successes_by_task(episodes, self.success_at)
        return {f"pass@{k}": estimate_pass_rate(pass_at_k, tasks_with(samples, k), k) for k in self.ks(samples)}


class PassHatKMetric(DrawSettings):
    """Chance that all of k samples succeed, over the tasks that have k valid samples. Source: 2406.12045."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        samples = successes_by_task(episodes, self.success_at)
        return {f"pass^{k}": estimate_pass_rate(pass_hat_k, tasks_with(samples, k), k) for k in self.ks(samples)}


class MajAtK(DrawSettings):
    """Success of the most frequent answer of k samples, over the tasks that have k valid samples. Source: 2203.11171.

    An episode's answer is that of its last action, as the search `best_of` reads it: the calls, or the marked answer,
    or the text.
    """

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        votes = by_task(episodes, self._vote)
        return {f"maj@{k}": _estimate_majority(tasks_with(votes, k), k) for k in self.ks(votes)}

    def _vote(self, episode: Trajectory) -> tuple[str | None, float] | None:
        reward = reward_of(episode)
        if reward is None:
            return None
        actions = [outcome.action for outcome in episode.outcomes if outcome is not None]
        return (answer_in(actions[-1].message) if actions else None, float(reaches(reward, self.success_at)))


def _estimate_majority(votes: dict[str, Sequence[tuple[str | None, float]]], k: int) -> Estimate:
    """Return the mean over tasks; were all alike, each disjoint group of k samples would be an independent trial."""
    rates = [majority_success(own, k, rng=generator("metric", "maj_at_k", task)) for task, own in votes.items()]
    sizes = [len(own) for own in votes.values()]
    return estimate_share(rates, num_samples=sum(sizes), num_trials=sum(size // k for size in sizes))


class BestOfN(Settings):
    """Expected largest reward of n samples, over the tasks that have n valid ones: what choosing by reward would earn.

    It is oracle-selected. The search `best_of` chooses by what the agent can see.
    """

    n: tuple[int, ...] = ()
    """Samples drawn; none: 1, 2, 4 ... up to the samples of a task. An n that no task has is left out."""

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        rewards = rewards_by_task(episodes)
        most = max(map(len, rewards.values()), default=0)
        return {f"best_of_{n}": _estimate_best(rewards, n) for n in self.n or powers_of_2(most) if 1 <= n <= most}


def _estimate_best(rewards: dict[str, list[float]], n: int) -> Estimate:
    best = {task: [best_of_n(own, n)] for task, own in tasks_with(rewards, n).items()}
    return estimate_mean(best, rng=generator("metric", "best_of_n", n))
