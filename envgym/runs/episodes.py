"""Episodes as rows of a table: what a run directory saves, and what is read back from it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from envgym.core.json_types import decode_recorded, well_formed
from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Invalid

COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "step": "int64",
        "env_id": "string",
        "task_id": "string",
        "task_key": "string",
        "split": "string",
        "seed": "int64",
        "tree_id": "string",
        "leaf": "int64",
        "ending": "string",
        "reward": "float64",
        "invalid_reason": "string",
        "components": "string",
        "turns": "int64",
        "sampled_tokens": "int64",
        "advantages": "string",
        "token_scores": "string",
        "dropped": "string",
        "tree": "string",
    }
)
"""Column -> Arrow type, whatever the rows of a step hold, so that the files of all steps are one data set."""

Advantages = Mapping[tuple[str, int], Sequence[float | tuple[float, ...]]]
"""(tree id, leaf) -> what training gave the episode: one entry per node of its path."""
TokenScores = Mapping[str, Sequence[Sequence[float]]]
"""Name -> what the learner computed of an episode: one entry per node of its path, a number per sampled token."""

_DIGITS: Final = 5
"""Decimals kept of what the learner computed."""


def episode_rows(
    trees: Iterable[Tree],
    *,
    step: int,
    advantages: Advantages | None = None,
    token_scores: Mapping[tuple[str, int], TokenScores] | None = None,
    dropped: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return one row per episode; a tree's JSON stands in the row of its first leaf.

    Args:
        trees: of one step, or of one evaluation.
        step: train step that sampled the trees, as in their ids; for an evaluation, the train steps done before it.
        advantages: of the episodes that were trained on.
        token_scores: (tree id, leaf) -> those of the episode, for those that were trained on.
        dropped: tree id -> why a filter dropped its group.
    """
    rows: list[dict[str, Any]] = []
    for tree in trees:
        for number, episode in enumerate(trajectories(tree)):
            row = _row(episode, step)
            credited = (advantages or {}).get((tree.id, episode.leaf))
            row["advantages"] = None if credited is None else json.dumps(credited)
            scores = (token_scores or {}).get((tree.id, episode.leaf))
            row["token_scores"] = None if scores is None else json.dumps(_rounded(scores))
            row["dropped"] = (dropped or {}).get(tree.id)
            row["tree"] = json.dumps(tree_to_json(tree)) if number == 0 else None
            rows.append({name: well_formed(cell) if isinstance(cell, str) else cell for name, cell in row.items()})
    return rows


def _row(episode: Trajectory, step: int) -> dict[str, Any]:
    tree, reward = episode.tree, episode.reward
    return {
        "step": step,
        "env_id": tree.env_id,
        "task_id": tree.task_id,
        "task_key": tree.task_key,
        "split": tree.split.value,
        "seed": tree.seed,
        "tree_id": tree.id,
        "leaf": episode.leaf,
        "ending": episode.ending.value,
        "reward": None if isinstance(reward, Invalid) else reward.value,
        "invalid_reason": reward.reason if isinstance(reward, Invalid) else None,
        "components": json.dumps({} if isinstance(reward, Invalid) else dict(reward.components)),
        "turns": len(episode.turns),
        "sampled_tokens": episode.num_sampled,
    }


def _rounded(scores: TokenScores) -> dict[str, list[list[float]]]:
    return {name: [[round(value, _DIGITS) for value in of_node] for of_node in of] for name, of in scores.items()}


def dropped_trees(dropped: Iterable[tuple[Group, str]]) -> dict[str, str]:
    """Return tree id -> reason for every tree of the dropped groups."""
    return {tree.id: reason for group, reason in dropped for tree in group.trees}


def trees_of(rows: Iterable[Mapping[str, Any]]) -> list[Tree]:
    """Read the trees back from rows that `episode_rows` made."""
    return [tree_from_json(decode_recorded(row["tree"])) for row in rows if row["tree"] is not None]
