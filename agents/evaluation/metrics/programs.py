"""Metrics of agent programs: crashes, tool calls that could not be read, options without effect, and rows per turn."""

import statistics
from collections.abc import Sequence

from envgym.agents.rollout.programs.endings import CRASHES, IGNORED_OPTIONS
from envgym.core.trajectory import Trajectory


def programs(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return means over the episodes that a program played, invalid ones included; {} where there is none.

    `program/crashes` is the share whose program crashed, `program/malformed_calls` and `program/ignored_options` are
    numbers per episode, and `program/rows_per_turn` is the number of rows by that of turns; it is left out where
    there is no turn, or where episodes have no tokens.
    """
    played = [episode for episode in episodes if _number(episode, CRASHES) is not None]
    if not played:
        return {}
    metrics = {
        name: statistics.fmean(_number(episode, name) or 0.0 for episode in played)
        for name in (CRASHES, IGNORED_OPTIONS)
    }
    outcomes = [outcome for episode in played for outcome in episode.outcomes if outcome is not None]
    metrics["program/malformed_calls"] = sum(len(outcome.action.malformed) for outcome in outcomes) / len(played)
    with_turns = [episode for episode in played if episode.turns and episode.num_sampled]
    if with_turns:
        num_turns = sum(len(episode.turns) for episode in with_turns)
        metrics["program/rows_per_turn"] = sum(len(episode.rows) for episode in with_turns) / num_turns
    return metrics


def _number(episode: Trajectory, name: str) -> float | None:
    annotation = episode.tree.annotated(name, "episode").get(episode.leaf)
    return None if annotation is None else annotation.value
