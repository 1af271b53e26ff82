"""Scores of rows: which rows a pass computes, under which first context, and the way back to the rows as sampled."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace

from envgym.core.segments import Origin
from envgym.core.trajectory import Row, Trajectory
from envgym.errors import InvalidInput, check_known
from envgym.trainer.batch.rows import TRAINED, TrainRow, train_row
from envgym.trainer.batch.spread import node_values
from envgym.trainer.methods.protocols import TrajectoryValues
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.methods.scores import Quantity, ScoreRequest

ComputeScores = Callable[
    [Sequence[TrainRow], Mapping[str, Collection[Quantity]]],
    Mapping[tuple[str, Quantity], Sequence[Sequence[float]]],
]
"""Computes quantities of models, by name: one number per token of each row, 0 at tokens that are not scored."""

Key = tuple[int, int]
"""Of an episode in a batch: its tree's identity (names of trees may repeat), and its leaf."""
EpisodeScores = Mapping[Key, Sequence[tuple[float, ...]]]
"""A score of every episode's rows that train, in order: one number per token."""


def key_of(episode: Trajectory) -> Key:
    """Return the key of an episode."""
    return id(episode.tree), episode.leaf


def trained_rows(episode: Trajectory) -> list[Row]:
    """Return the rows of an episode that hold a sampled token."""
    return [row for row in episode.rows if any(row.loss_mask)]


def score_episodes(
    episodes: Sequence[Trajectory],
    requests: Sequence[ScoreRequest],
    compute: ComputeScores,
    *,
    origins: Set[Origin] = TRAINED,
) -> dict[str, EpisodeScores]:
    """Compute the scores of episodes, by name: one pass for each first context and model.

    Args:
        episodes: whose rows are scored.
        requests: the scores.
        compute: computes them.
        origins: of the tokens that the objective reads: those outside the loss mask are scored, too.

    Raises: UnknownName: a tree without the prompt that is asked for. InvalidInput: a prompt in place of a context that
        was rewritten, or a number that is not finite.
    """
    pairs = [(episode, row) for episode in episodes for row in trained_rows(episode)]
    scores: dict[str, EpisodeScores] = {}
    contexts = dict.fromkeys((request.prompt, request.without_prompt) for request in requests)
    for context in contexts:
        context_requests = [request for request in requests if (request.prompt, request.without_prompt) == context]
        rows = [_row_under(episode, row, context_requests[0], origins) for episode, row in pairs]
        quantities: dict[str, list[Quantity]] = {}
        for request in context_requests:
            quantities.setdefault(request.model, []).append(request.quantity)
        numbers = compute(rows, quantities) if rows else {}
        for request in context_requests:
            of_rows = numbers[request.model, request.quantity] if rows else ()
            triples = zip(pairs, rows, of_rows, strict=True)
            values = iter([_as_sampled(request, row, under, row_scores) for (_, row), under, row_scores in triples])
            scores[request.name] = {
                key_of(episode): [next(values) for _ in trained_rows(episode)] for episode in episodes
            }
    return scores


def along_path(episode: Trajectory, of_rows: Sequence[Sequence[float]]) -> TrajectoryValues:
    """Lay a score of the rows that train along the episode's path; the other rows have no sampled token."""
    remaining = iter(of_rows)
    return node_values(episode, [next(remaining) if any(row.loss_mask) else (0.0,) * len(row) for row in episode.rows])


def token_scores_of(
    episodes: Sequence[Trajectory], of_rows: Mapping[str, Sequence[Sequence[float]]]
) -> list[dict[str, tuple[tuple[float, ...], ...]]]:
    """Lay named numbers of rows along the paths of their episodes.

    Args:
        episodes: whose rows that train come first in the columns, in order.
        of_rows: name -> for each row one number per token.

    Returns: for each episode, name -> one entry per node of its path: a number per sampled token of the node.
    """
    remaining = {name: iter(rows) for name, rows in of_rows.items()}
    return [
        {
            name: along_path(episode, [next(rows) for _ in trained_rows(episode)]).values
            for name, rows in remaining.items()
        }
        for episode in episodes
    ]


def _row_under(episode: Trajectory, row: Row, request: ScoreRequest, origins: Set[Origin]) -> TrainRow:
    """Return a row without advantages, its first context replaced by the prompt that is asked for."""
    own = train_row(row, (0.0,) * len(row))
    if not origins <= TRAINED:
        own = replace(own, other_tokens=replace(own, id=RowId(row=row)).tokens_of(origins - TRAINED))
    tree, prompt = episode.tree, request.prompt
    if prompt is None or (prompt not in tree.prompts and request.without_prompt == "own"):
        return own
    where = f"score {request.name}, tree {tree.id}"
    check_known("prompt of the tree", prompt, tree.prompts, where=where)
    if row.rewrite is not None:
        do = "use an agent whose context only grows, or a score without a prompt"
        must = "begin with the first context to be scored under another prompt"
        raise InvalidInput.of("row", must, f"one after {row.rewrite}", where=where, do=do)
    first, cut = tree.prompts[prompt], _length_of_first_context(row)
    rest = (0.0,) * (len(first) + len(row) - cut)
    return replace(
        own,
        token_ids=(*first, *row.token_ids[cut:]),
        loss_mask=(*[False] * len(first), *row.loss_mask[cut:]),
        other_tokens=(*[False] * len(first), *own.other_tokens[cut:]) if own.other_tokens else (),
        advantages=rest,
        behavior_logprobs=rest,
        weights=(1.0,) * len(rest),
    )


def _length_of_first_context(row: Row) -> int:
    return sum(node == 0 for node in row.nodes)


def _as_sampled(request: ScoreRequest, row: Row, under: TrainRow, values: Sequence[float]) -> tuple[float, ...]:
    """Return the numbers of a row as it was sampled, 0 in the first context; refuse what is not finite."""
    scores = tuple(values[: len(under)])
    if not all(map(math.isfinite, scores)):
        place = next(place for place, value in enumerate(scores) if not math.isfinite(value))
        do = "check the model that computes it"
        where = f"tree {row.tree_id}, leaf {row.leaf}, token {place}"
        raise InvalidInput.of(f"score {request.name}", "be finite", scores[place], where=where, do=do)
    if len(under) == len(row) and under.token_ids == row.token_ids:
        return scores
    cut = _length_of_first_context(row)
    return (0.0,) * cut + scores[len(under) - (len(row) - cut) :]
