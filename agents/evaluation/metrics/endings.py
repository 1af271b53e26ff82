"""The share of each ending."""

from collections import Counter
from collections.abc import Sequence

from envgym.core.trajectory import Trajectory
from envgym.core.turns import Ending


def endings(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of the episodes with each ending, by its name."""
    counts = Counter(episode.ending for episode in episodes)
    return {str(ending): counts[ending] / len(episodes) for ending in Ending if counts[ending]}
