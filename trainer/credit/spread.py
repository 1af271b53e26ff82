"""From advantages on nodes to advantages on tokens: the only place where this happens."""

from envgym.core.trajectory import Row
from envgym.errors import InvalidInput, sentence
from envgym.trainer.points import TrajectoryCredit


def token_advantages(credit: TrajectoryCredit, row: Row) -> tuple[float, ...]:
    """Return the advantage of every token of one of the trajectory's rows; 0.0 where the loss mask is False.

    Raises: InvalidInput: the credit does not fit the path, or an entry per token does not fit its edge.
    """
    path = credit.trajectory.path
    if len(credit.advantages) != len(path):
        do = "give one entry per node of trajectory.path"
        where = f"tree {row.tree_id}, leaf {row.leaf}"
        got = len(credit.advantages)
        raise InvalidInput(sentence("advantages", f"match the path's {len(path)} nodes", got, where=where, do=do))
    of_node = dict(zip(path, credit.advantages, strict=True))
    sampled: dict[int, int] = {}
    spread = [0.0] * len(row)
    for place, (node, trains) in enumerate(zip(row.nodes, row.loss_mask, strict=True)):
        if not trains:
            continue
        entry = of_node[node]
        if isinstance(entry, tuple):
            offset = sampled.get(node, 0)
            sampled[node] = offset + 1
            if offset >= len(entry):
                raise _misfit(row, node, len(entry), offset + 1)
            spread[place] = entry[offset]
        else:
            spread[place] = entry
    for node, count in sampled.items():
        entry = of_node[node]
        if isinstance(entry, tuple) and len(entry) != count:
            raise _misfit(row, node, len(entry), count)
    return tuple(spread)


def _misfit(row: Row, node: int, got: int, count: int) -> InvalidInput:
    where = f"tree {row.tree_id}, node {node}"
    return InvalidInput(
        sentence(
            "advantages of a node", f"match its sampled tokens (at least {count})", got, where=where, do="give one each"
        )
    )
