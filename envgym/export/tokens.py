"""Token sequences as training reads them: ids, mask, log-probs and advantages. One row for each row of an episode."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from envgym.core.trajectory import Row, Trajectory
from envgym.errors import InvalidInput
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
                yield DataRow(tree.split, tree.task_key, len(set(row.turns) - {-1}), cells)


def _cells(number: int, row: Row) -> Json:
    versions: list[int | None] = []
    labels: list[int] = []
    for segment in row.segments:
        num_tokens = len(segment)
        versions += [segment.policy_version] * num_tokens
        labels += segment.token_ids if segment.trains else [_NOT_LEARNED] * num_tokens
    return {
        "context": number,
        "rewrite": row.rewrite and row.rewrite.value,
        "input_ids": row.token_ids,
        "labels": labels,
        "loss_mask": row.loss_mask,
        "logprobs": row.behavior_logprobs,
        "turns": row.turns,
        "policy_versions": versions,
    }


def _advantages(episode: Trajectory, row: Row, entries: Advantages | None) -> list[float | None] | None:
    """Return the advantage of each token, None where it is not trained; None for an episode that was not trained on.

    Raises: InvalidInput: a turn has more sampled tokens than recorded advantages.
    """
    if entries is None:
        return None
    by_node = dict(zip(episode.path, entries, strict=True))
    values: list[float | None] = []
    place, last = 0, -1
    for segment in row.segments:
        num_tokens, node = len(segment), row.nodes[len(values)]
        place, last = (place if node == last else 0), node  # sampled tokens of the node before this segment
        if not segment.trains:
            values += [None] * num_tokens
            continue
        entry, end = by_node[node], place + num_tokens
        if isinstance(entry, Sequence):
            must, do = f"have a number for each of {end} sampled tokens", "export from a complete run directory"
            InvalidInput.unless(end <= len(entry), "recorded advantages", must, len(entry), where=f"node {node}", do=do)
            values += entry[place:end]
        else:
            values += [entry] * num_tokens
        place = end
    return values


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
