"""Contexts that were rendered anew instead of appended to: how many, and a run that must have none.

Each is sound by itself (the next turn begins a row of its own), but it costs a prefix that no cache holds, and one more
row. Where none is expected, one means that a template or an agent is not what it is taken for.
"""

from collections import Counter
from collections.abc import Sequence

from envgym.core.trajectory import Group, Trajectory, Turn
from envgym.core.tree import Rewrite
from envgym.errors import RunError, sentence
from envgym.trainer.metrics.update import Metrics


def context_rewrite_metrics(groups: Sequence[Group]) -> Metrics:
    """Return how many turns began in a context rendered anew, by reason, and the share of episodes with such a turn.

    A turn that several episodes of a tree share counts once.
    """
    episodes = [episode for group in groups for episode in group.trajectories]
    counts = Counter(turn.rewrite for _, turn in _rewritten(groups))
    drifted = sum(len(episode.rows) > 1 for episode in episodes)
    return {
        "drift/rewritten_turns": float(counts.total()),
        "drift/rewritten_episodes": drifted / max(len(episodes), 1),
        **{f"drift/{rewrite}": float(counts[rewrite]) for rewrite in Rewrite if counts[rewrite]},
    }


def check_context_rewrites(groups: Sequence[Group], *, step: int) -> None:
    """Check that every context extends the one before. Raises: RunError: one was rendered anew."""
    if found := _rewritten(groups):
        episode, turn = found[0]
        got = f"{len(found)} turns of others, the first in turn {turn.index} of {episode.tree.id} ({turn.rewrite})"
        do = "take a template and an agent.context that leave earlier turns alone, or set canary.on_rewrite=row"
        must = "go on from what was given and sampled, as canary.on_rewrite=fail asks"
        raise RunError(sentence("contexts", must, got, where=f"step {step}", do=do))


def _rewritten(groups: Sequence[Group]) -> list[tuple[Trajectory, Turn]]:
    """Return the turns that began in a context rendered anew, each with one of its episodes."""
    found: dict[tuple[int, str, int], tuple[Trajectory, Turn]] = {}
    for number, group in enumerate(groups):
        for episode in group.trajectories:
            for turn in episode.turns:
                if turn.rewrite is not None:
                    found.setdefault((number, episode.tree.id, turn.nodes[0]), (episode, turn))
    return list(found.values())
