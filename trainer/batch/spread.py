"""From advantages on nodes to advantages on tokens: the only place where this happens.

A critic's values go the other way, from the tokens of rows to nodes, and its targets come back.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from envgym.core.trajectory import Row, Trajectory
from envgym.errors import InvalidInput
from envgym.trainer.methods.protocols import TrajectoryCredit, TrajectoryValues

T = TypeVar("T")


def token_advantages(credit: TrajectoryCredit, row: Row) -> tuple[float, ...]:
    """Return the advantage of every token of one of the trajectory's rows; 0.0 where the loss mask is False.

    Raises: InvalidInput: the credit does not fit the path, or an entry per token does not fit its edge.
    """
    return _spread("advantages", credit.trajectory, credit.advantages, row, blank=0.0)


def token_targets(credit: TrajectoryCredit, row: Row) -> tuple[float | None, ...]:
    """Return the target of the critic's value before every token of a row; None where it learns nothing.

    Raises: InvalidInput: the targets do not fit the path or its edges.
    """
    if credit.targets is None:
        return (None,) * len(row)
    return _spread("targets", credit.trajectory, credit.targets, row, blank=None)


def node_values(trajectory: Trajectory, of_rows: Sequence[Sequence[float]]) -> TrajectoryValues:
    """Collect one number per sampled token of all of a trajectory's rows, such as the critic's values.

    Args:
        trajectory: an episode.
        of_rows: one sequence per row of `trajectory.rows`, one number per token.

    Raises: InvalidInput: a row has another number of values than tokens.
    """
    of_node: dict[int, list[float]] = {node: [] for node in trajectory.path}
    for row, values in zip(trajectory.rows, of_rows, strict=True):
        if len(values) != len(row):
            where, do = f"tree {row.tree_id}, leaf {row.leaf}", "give one value per token"
            raise InvalidInput.of("values", f"match the row's {len(row)} tokens", len(values), where=where, do=do)
        for node, trains, value in zip(row.nodes, row.loss_mask, values, strict=True):
            if trains:
                of_node[node].append(value)
    return TrajectoryValues(trajectory=trajectory, values=tuple(tuple(of_node[node]) for node in trajectory.path))


def _spread(
    what: str, episode: Trajectory, entries: Sequence[T | tuple[T, ...]], row: Row, *, blank: T
) -> tuple[T, ...]:
    """Lay entries per node, or per sampled token of a node, on a row; `blank` where the loss mask is False."""
    if len(entries) != len(episode.path):
        do = "give one entry per node of trajectory.path"
        where = f"tree {row.tree_id}, leaf {row.leaf}"
        raise InvalidInput.of(what, f"match the path's {len(episode.path)} nodes", len(entries), where=where, do=do)
    of_node = dict(zip(episode.path, entries, strict=True))
    nodes = [node if trains else None for node, trains in zip(row.nodes, row.loss_mask, strict=True)]
    of_tokens: dict[int, Iterator[T]] = {}
    for node, count in Counter(node for node in nodes if node is not None).items():
        entry = of_node[node]
        if isinstance(entry, tuple) and len(entry) != count:
            must, where = f"match its sampled tokens ({count})", f"tree {row.tree_id}, node {node}"
            raise InvalidInput.of(f"{what} of a node", must, len(entry), where=where, do="give one each")
        of_tokens[node] = iter(entry if isinstance(entry, tuple) else (entry,) * count)
    return tuple(blank if node is None else next(of_tokens[node]) for node in nodes)
