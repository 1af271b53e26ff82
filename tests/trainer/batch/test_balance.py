"""Balance of rows over ranks: worked examples, the cut's optimum by enumeration, laws of both plans."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.trainer.batch.balance import Shares, TokenCost, balance_rows, cut_shares, group_shares
from envgym.trainer.batch.packs import build_trie

TOKENS = TokenCost(base=1, pair=0)
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=7)
COSTS = st.builds(TokenCost, base=st.integers(1, 9), pair=st.integers(0, 4))


def cost_of(rows: list[list[int]], chosen: tuple[int, ...], cost: TokenCost) -> int:
    trie = build_trie(rows, chosen)
    return sum(cost.of(same, length) for same, length in zip(trie.shared, trie.lengths, strict=True))


def test_cost_counts_every_token_and_every_pair_that_it_attends() -> None:
    # Places 2 and 3 attend 3 and 4 tokens: 2 tokens at 10, 7 pairs at 1.
    assert TokenCost(base=10, pair=1).of(2, 4) == 27


def test_groups_go_longest_first_to_the_rank_with_the_least() -> None:
    # Distinct tokens: group 0 has 1 2 3 4 | 5 = 5, group 1 has 4, group 2 has 3: 5 | 4 + 3.
    rows = [[1, 2, 3, 4], [1, 2, 3, 5], [6, 6, 6, 6], [7, 7, 7]]
    shares = group_shares(rows, [0, 0, 1, 2], range(4), 2, TOKENS)
    assert shares == Shares(rows=((0, 1), (2, 3)), costs=(5, 7), plan="groups")


def test_cut_repeats_a_prefix_where_one_group_is_more_than_a_share() -> None:
    # One prompt of 2 and four replies of 3: 14 distinct tokens; two replies a rank are 2 + 6 = 8 each.
    rows = [[0, 0, reply, reply, reply] for reply in (1, 2, 3, 4)]
    assert group_shares(rows, [0] * 4, range(4), 2, TOKENS).costs == (14, 0)
    shares = balance_rows(rows, [0] * 4, range(4), 2, TOKENS)
    assert shares == Shares(rows=((0, 1), (2, 3)), costs=(8, 8), plan="cut")


def test_rows_that_are_padded_share_nothing() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2]]
    shares = balance_rows(rows, [0] * 3, range(3), 2, TOKENS, packed=False)
    assert shares == Shares(rows=((0, 2), (1,)), costs=(6, 4), plan="groups")


def test_ranks_beyond_the_rows_have_none() -> None:
    shares = balance_rows([[1], [2]], [0, 1], [1], 3, TOKENS)
    assert shares.rows == ((1,), (), ())


def test_no_rows_are_no_work() -> None:
    assert balance_rows([], [], [], 2, TOKENS).costs == (0, 0)


@given(rows=ROWS, cost=COSTS, num_ranks=st.integers(1, 4), packed=st.booleans())
def test_every_row_is_dealt_once_and_the_better_plan_is_taken(
    rows: list[list[int]], cost: TokenCost, num_ranks: int, packed: bool
) -> None:
    groups = [number % 3 for number in range(len(rows))]
    shares = balance_rows(rows, groups, range(len(rows)), num_ranks, cost, packed=packed)
    assert sorted(row for of_rank in shares.rows for row in of_rank) == list(range(len(rows)))
    if packed:
        assert shares.costs == tuple(cost_of(rows, of_rank, cost) for of_rank in shares.rows)
        plans = (
            group_shares(rows, groups, range(len(rows)), num_ranks, cost),
            cut_shares(rows, range(len(rows)), num_ranks, cost),
        )
        assert shares.slowest == min(plan.slowest for plan in plans)
        assert num_ranks * shares.slowest >= cost_of(rows, tuple(range(len(rows))), cost)


@given(rows=ROWS, cost=COSTS, num_ranks=st.integers(1, 3))
def test_no_other_cut_has_a_faster_slowest_rank(rows: list[list[int]], cost: TokenCost, num_ranks: int) -> None:
    order = build_trie(rows, range(len(rows))).rows
    cuts = [(0, *places, len(order)) for places in combinations(range(1, len(order)), min(num_ranks, len(order)) - 1)]
    best = min(max(cost_of(rows, order[start:end], cost) for start, end in pairwise(places)) for places in cuts)
    assert cut_shares(rows, range(len(rows)), num_ranks, cost).slowest == best


@given(rows=ROWS, cost=COSTS)
def test_one_rank_has_all(rows: list[list[int]], cost: TokenCost) -> None:
    everything = tuple(range(len(rows)))
    shares = balance_rows(rows, [0] * len(rows), everything, 1, cost)
    assert shares.rows == (everything,)
    assert shares.slowest == cost_of(rows, everything, cost)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_the_order_of_the_rows_chosen_changes_nothing(num_ranks: int) -> None:
    rows = [[0, 1, 2], [0, 1, 3, 4], [5], [5, 6, 7, 8], [0, 2]]
    forward = balance_rows(rows, [0, 0, 1, 1, 2], range(5), num_ranks, TOKENS)
    assert balance_rows(rows, [0, 0, 1, 1, 2], [3, 1, 4, 0, 2], num_ranks, TOKENS) == forward
