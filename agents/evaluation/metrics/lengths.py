"""How long episodes are, in turns, tokens and rows."""

import statistics
from collections.abc import Sequence

from envgym.core.trajectory import Trajectory


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
