"""Metrics of the effort of episodes: what they cost, how long they are, and how they end."""

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import partial

from envgym.agents.evaluation.metrics.base import by_task
from envgym.core.trajectory import Trajectory
from envgym.core.turns import Ending
from envgym.seeds import generator
from envgym.stats import Estimate, estimate_mean

_COST_PARTS = ("tokens_generated", "tokens_prefilled", "tool_calls", "env_steps")


def cost(episodes: Sequence[Trajectory]) -> dict[str, Estimate]:
    """Return the cost of episodes, also invalid ones, with all that their searches spent: tokens, calls and turns.

    The cost of a tree is shared evenly by its episodes. Prefilled tokens are those that no cache had.
    """
    num_episodes = Counter(id(episode.tree) for episode in episodes)

    def share(part: str, episode: Trajectory) -> float:
        return float(getattr(episode.tree.total_cost, part)) / num_episodes[id(episode.tree)]

    return {
        f"{part}_per_episode": estimate_mean(by_task(episodes, partial(share, part)), rng=generator("metric", part))
        for part in _COST_PARTS
        if episodes
    }


def lengths(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return means of turns, sampled tokens and rows over episodes, and the largest number of tokens of a row."""
    if not episodes:
        return {}
    turns = {"turns": sum(len(episode.turns) for episode in episodes) / len(episodes)}
    rows = [len(row) for episode in episodes for row in episode.rows]
    if not rows:  # episodes by messages have no tokens
        return turns
    return turns | {
        "sampled_tokens": statistics.fmean(episode.num_sampled for episode in episodes),
        "row_tokens": statistics.fmean(rows),
        "row_tokens_max": float(max(rows)),
        "rows_per_episode": len(rows) / len(episodes),
    }


def endings(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of the episodes with each ending, by its name."""
    counts = Counter(episode.ending for episode in episodes)
    return {str(ending): counts[ending] / len(episodes) for ending in Ending if counts[ending]}
