"""What an episode costs."""

from collections.abc import Sequence
from functools import partial

from envgym.agents.evaluation.metrics.base import by_task
from envgym.core.trajectory import Trajectory
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean

_PARTS = ("tokens_generated", "tokens_prefilled", "tool_calls", "env_steps")


def cost(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Return what an episode cost, invalid ones too, with all that its search spent: tokens, calls and turns.

    The cost of a tree is shared evenly by its episodes. Prefilled tokens are those that no cache had.
    """
    num_episodes: dict[int, int] = {}
    for episode in episodes:
        num_episodes[id(episode.tree)] = num_episodes.get(id(episode.tree), 0) + 1

    def share(part: str, episode: Trajectory) -> float:
        return float(getattr(episode.tree.total_cost, part)) / num_episodes[id(episode.tree)]

    return {
        f"{part}_per_episode": estimate_mean(by_task(episodes, partial(share, part)), rng=generator("metric", part))
        for part in _PARTS
        if episodes
    }
