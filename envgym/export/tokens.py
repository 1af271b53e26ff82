"""Token sequences as training reads them: ids, mask, log-probs and advantages. One row for each row of an episode."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from envgym.core.trajectory import Row, Trajectory
from envgym.export.episodes import Advantages, RecordedGroup
from envgym.export.rows import (
    CONTEXT_COLUMNS,
    EPISODE_COLUMNS,
    NO_TOKENS,
    NO_TURN,
    DataKind,
    DataRow,
    Json,
    RowOptions,
    chosen_episodes,
    episode_cells,
)

_NOT_LEARNED: Final = -100
"""The label that PyTorch's cross-entropy leaves out."""


def _rows(group: RecordedGroup, options: RowOptions) -> Iterator[DataRow]:
    for recorded in group.trees:
        tree = recorded.tree
        for episode in chosen_episodes(recorded, options):
            for number, row in enumerate(episode.rows):
                if not any(row.loss_mask):
                    has_tokens = any(node.edge.segments for node in tree.nodes)
                    options.left_out[NO_TURN if has_tokens else NO_TOKENS] += 1
                    continue
                cells = episode_cells(recorded, episode) | _cells(number, row)
                cells["advantages"] = _advantages(episode, row, recorded.advantages.get(episode.leaf))
                yield DataRow(tree.split, tree.task_key, len({turn for turn in row.turns if turn >= 0}), cells)


def _cells(number: int, row: Row) -> Json:
    versions = [
        segment.policy_version if segment.trains else None for segment in row.segments for _ in segment.token_ids
    ]
    return {
        "context": number,
        "rewrite": row.rewrite and row.rewrite.value,
        "input_ids": row.token_ids,
        "labels": [token if mask else _NOT_LEARNED for token, mask in zip(row.token_ids, row.loss_mask, strict=True)],
        "loss_mask": row.loss_mask,
        "logprobs": row.behavior_logprobs,
        "turns": row.turns,
        "policy_versions": versions,
    }


def _advantages(episode: Trajectory, row: Row, entries: Advantages | None) -> list[float | None] | None:
    """Return the advantage of each token, None where it is not trained; None for an episode that was not trained on."""
    if entries is None:
        return None
    by_node = dict(zip(episode.path, entries, strict=True))
    places: dict[int, int] = {}
    """Node -> number of its sampled tokens so far."""
    values: list[float | None] = []
    for node, is_trained in zip(row.nodes, row.loss_mask, strict=True):
        values.append(_entry(by_node, node, places.get(node, 0)) if is_trained else None)
        places[node] = places.get(node, 0) + is_trained
    return values


def _entry(by_node: Mapping[int, float | Sequence[float]], node: int, place: int) -> float:
    entry = by_node[node]
    return entry[place] if isinstance(entry, Sequence) else entry


_IDS: Final = pa.list_(pa.int32())
KIND: Final = DataKind(
    name="tokens",
    title="a token sequence as training reads it; an episode has another one after each context rewrite",
    use="Training on exactly the sampled tokens: `input_ids` and `labels` are those of TRL's `SFTTrainer`.",
    columns={
        **EPISODE_COLUMNS,
        **CONTEXT_COLUMNS,
        "input_ids": (_IDS, "token ids, exactly as sampled and rendered"),
        "labels": (_IDS, f"the ids of sampled tokens, {_NOT_LEARNED} for all others"),
        "loss_mask": (pa.list_(pa.bool_()), "true on tokens that the policy sampled"),
        "logprobs": (
            pa.list_(pa.float32()),
            "log-probs in nats under the sampling policy; 0 where nothing was sampled",
        ),
        "advantages": (
            pa.list_(pa.float32()),
            "advantages in training; null if the token or the episode was not trained on",
        ),
        "turns": (_IDS, "turn of the token; -1 before the first one"),
        "policy_versions": (_IDS, "version of the weights that sampled the token; null for all others"),
    },
    rows=_rows,
    options=(),
    needs_tokens=True,
)
