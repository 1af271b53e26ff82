"""maj@k: the most frequent answer of k samples succeeds."""

from collections.abc import Sequence

from envgym.agents.evaluation.metrics.base import DrawSettings, by_task, reward_of
from envgym.agents.search.scorers import answer_in
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_share, majority_success
from envgym.stats.rates import tasks_with


class MajAtK(DrawSettings):
    """Success of the most frequent answer of k samples, over the tasks that have k valid samples. Source: 2203.11171.

    An episode's answer is that of its last action, as the search `best_of` reads it: the calls, or the marked answer,
    or the text.
    """

    def __call__(self, episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
        """Return `maj@<k>`."""
        votes = by_task(episodes, self._vote)
        return {f"maj@{k}": _estimate(tasks_with(votes, k), k) for k in self.ks(votes)}

    def _vote(self, episode: Trajectory) -> tuple[str | None, float] | None:
        """Return an episode's answer and success; None where its reward is invalid."""
        reward = reward_of(episode)
        if reward is None:
            return None
        actions = [outcome.action for outcome in episode.outcomes if outcome is not None]
        return (answer_in(actions[-1].message) if actions else None, float(reward >= self.success_at))


def _estimate(votes: dict[str, Sequence[tuple[str | None, float]]], k: int) -> Estimate:
    """Return the mean over tasks; were all alike, each disjoint group of k samples would be an independent trial."""
    rates = [majority_success(own, k, rng=generator("metric", "maj_at_k", task)) for task, own in votes.items()]
    sizes = [len(own) for own in votes.values()]
    return estimate_share(rates, num_samples=sum(sizes), num_trials=sum(size // k for size in sizes))
