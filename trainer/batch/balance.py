"""Balance of rows over learner ranks: the same work for every rank, with as little of it twice as can be.

Rows of one rank share their prefixes; rows of two ranks do not. Two plans are made, and the one whose slowest rank has
less to do is taken: whole groups, longest first, or the trie in depth-first order, cut into runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from envgym.trainer.batch.packs import build_trie


class TokenCost(NamedTuple):
    """Floating-point operations of forward and backward pass, of which a token at depth t needs base + pair (t + 1)."""

    base: int
    """Of a token by itself: 6 per parameter that it meets."""
    pair: int
    """Of a token and one that it attends: 12 per layer and unit of the attention's width."""

    def of(self, start: int, end: int) -> int:
        """Return the cost of a row's tokens from the place `start` up to `end`."""
        pairs = (end * (end + 1) - start * (start + 1)) // 2
        return self.base * (end - start) + self.pair * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Rows dealt out to ranks."""

    rows: tuple[tuple[int, ...], ...]
    """Of each rank, ascending; () where there are too few."""
    costs: tuple[int, ...]
    """Floating-point operations of each rank, shared prefixes counted once a rank."""
    plan: Literal["groups", "cut"]

    @property
    def slowest(self) -> int:
        """The largest cost of a rank: the others wait for it."""
        return max(self.costs)


def balance_rows(
    token_ids: Sequence[Sequence[int]],
    groups: Sequence[int],
    indices: Sequence[int],
    num_ranks: int,
    cost: TokenCost,
    *,
    packed: bool = True,
) -> Shares:
    """Deal the chosen rows out to ranks by the better of the two plans; a function of the rows alone.

    Args:
        token_ids: of all rows.
        groups: number of the group of every row; rows of one are likely to share a prefix.
        indices: the rows to deal out.
        num_ranks: at least 1.
        cost: of tokens.
        packed: whether a rank computes a shared prefix once; else every row is a group of its own.
    """
    if not packed:
        return group_shares(token_ids, range(len(token_ids)), indices, num_ranks, cost, packed=False)
    whole = group_shares(token_ids, groups, indices, num_ranks, cost)
    parts = cut_shares(token_ids, indices, num_ranks, cost)
    return min(whole, parts, key=lambda shares: shares.slowest)


def group_shares(
    token_ids: Sequence[Sequence[int]],
    groups: Sequence[int],
    indices: Sequence[int],
    num_ranks: int,
    cost: TokenCost,
    *,
    packed: bool = True,
) -> Shares:
    """Deal whole groups out, the longest first by the cost of its distinct tokens, each to the rank with the least."""
    rows_of: dict[int, list[int]] = {}
    for row in sorted(indices):
        rows_of.setdefault(groups[row], []).append(row)
    sized = [(sum(_added_costs(token_ids, rows, cost, packed=packed)), rows) for rows in rows_of.values()]
    dealt: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for size, rows in sorted(sized, key=lambda pair: (-pair[0], pair[1][0])):
        rank = loads.index(min(loads))
        loads[rank] += size
        dealt[rank] += rows
    costs = tuple(sum(_added_costs(token_ids, rows, cost, packed=packed)) for rows in dealt)
    return Shares(rows=tuple(tuple(sorted(rows)) for rows in dealt), costs=costs, plan="groups")


def cut_shares(token_ids: Sequence[Sequence[int]], indices: Sequence[int], num_ranks: int, cost: TokenCost) -> Shares:
    """Cut the trie in depth-first order into a run a rank, so that the largest cost of a run is the least possible.

    Where a limit is given, runs that are as long as it allows are the fewest: a run costs no more without its first
    row. So a binary search finds the least limit that needs no more runs than there are ranks.
    """
    trie = build_trie(token_ids, indices)
    added = [cost.of(same, length) for same, length in zip(trie.shared, trie.lengths, strict=True)]
    alone = [cost.of(0, length) for length in trie.lengths]
    low, high = max(alone, default=0), sum(added)
    while low < high:
        limit = (low + high) // 2
        if len(_runs(added, alone, limit)) <= num_ranks:
            high = limit
        else:
            low = limit + 1
    runs = _runs(added, alone, high)
    runs += [range(0)] * (num_ranks - len(runs))
    return Shares(
        rows=tuple(tuple(sorted(trie.rows[place] for place in run)) for run in runs),
        costs=tuple(alone[run.start] + sum(added[run.start + 1 : run.stop]) if run else 0 for run in runs),
        plan="cut",
    )


def _runs(added: Sequence[int], alone: Sequence[int], limit: int) -> list[range]:
    """Cut rows into runs that are as long as a limit of their cost allows; a row costs no more than it alone."""
    totals = [0, *accumulate(added)]
    runs: list[range] = []
    start = 0
    for place in range(1, len(added) + 1):
        if place == len(added) or alone[start] + totals[place + 1] - totals[start + 1] > limit:
            runs.append(range(start, place))
            start = place
    return runs


def _added_costs(
    token_ids: Sequence[Sequence[int]], rows: Sequence[int], cost: TokenCost, *, packed: bool = True
) -> list[int]:
    """Return the cost of each row beyond the tokens that it shares with the one before it."""
    if not packed:
        return [cost.of(0, len(token_ids[row])) for row in rows]
    trie = build_trie(token_ids, rows)
    return [cost.of(same, length) for same, length in zip(trie.shared, trie.lengths, strict=True)]
