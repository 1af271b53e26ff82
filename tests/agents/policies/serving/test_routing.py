"""Which server a request goes to, and how many one server has: additive increase, multiplicative decrease."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.policies.serving.routing import BLOCK, ConcurrencyLimit, PrefixRouter, ServerLoad, block_hashes
from envgym.errors import InvalidInput

CONTEXT = tuple(range(5 * BLOCK + 3))


def loads(*under_way: int, room: int = 9) -> list[ServerLoad]:
    return [ServerLoad(number, count, count < room) for number, count in enumerate(under_way)]


def test_hashes_are_those_of_whole_blocks_and_of_all_before_them() -> None:
    codes = block_hashes(CONTEXT, "1")
    assert len(codes) == 5
    assert block_hashes(CONTEXT[: 3 * BLOCK + 1], "1") == codes[:3]
    assert not set(block_hashes((7, *CONTEXT[1:]), "1")) & set(codes)
    assert not set(block_hashes(CONTEXT, "2")) & set(codes)


def test_a_context_goes_to_the_server_that_holds_most_of_it() -> None:
    router, codes = PrefixRouter(), block_hashes(CONTEXT, "")
    assert router.choose(codes, loads(0, 0)) == 0
    router.note(codes[:2], 0)
    router.note(codes[2:4], 1)
    assert router.choose(codes, loads(0, 0)) == 1
    assert router.choose(codes[:2], loads(0, 0)) == 0
    router.forget(1)
    assert router.choose(codes, loads(0, 0)) == 0


def test_a_server_far_busier_than_the_others_gets_no_more_for_its_prefix() -> None:
    router, codes = PrefixRouter(), block_hashes(CONTEXT, "")
    router.note(codes, 0)
    # at most 1.25 times the mean of 2 requests, and one: 3.5
    assert router.choose(codes, loads(3, 1)) == 0
    assert router.choose(codes, loads(4, 0)) == 1


def test_the_server_that_holds_a_context_is_chosen_whatever_its_blocks_tell_unless_it_is_far_busier() -> None:
    router, codes = PrefixRouter(), block_hashes(CONTEXT, "")
    router.note(codes, 0)
    assert router.choose(codes, loads(1, 2), holder=1) == 1
    assert router.choose((), loads(0, 4), holder=1) == 0
    assert router.choose((), loads(1, 0), holder=7) == 1, "one that is used no more"


def test_without_room_nobody_is_chosen() -> None:
    assert PrefixRouter().choose([], loads(2, 2, room=2)) is None
    assert PrefixRouter().choose([], loads(2, 1, room=2)) == 1


def test_the_oldest_blocks_are_forgotten_first() -> None:
    router = PrefixRouter(max_blocks=3)
    router.note([1, 2, 3], 1)
    router.note([1, 4], 1)
    assert [router.choose([code], loads(0, 0)) for code in (1, 2, 3, 4)] == [1, 0, 1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_without_prefixes_the_least_busy_is_chosen(counts: list[int]) -> None:
    assert PrefixRouter().choose([], loads(*counts, room=99)) == counts.index(min(counts))


def test_a_worked_example_of_the_limit() -> None:
    limit = ConcurrencyLimit(limit=8.0, ceiling=10)
    observed: list[float] = []
    # (most requests in between, preemptions since the server started)
    for most, preemptions in [(8, 0), (5, 0), (9, 0), (10, 0), (10, 2), (7, 2), (7, 5), (1, 5), (1, 0)]:
        limit = limit.begin(most).observe(preemptions, num_under_way=0)
        observed.append(limit.limit)
    # +1 as 8 of 8 were used; 5 of 9 were not; +1; the ceiling; 10 · 0.75; 7 of 7.5 were used; 8.5 · 0.75; 1 of 6;
    # fewer preemptions than before are those of a server that was started anew
    assert observed == [9.0, 9.0, 10.0, 10.0, 7.5, 8.5, 6.375, 6.375, 6.375]


def test_a_part_of_a_request_allows_none() -> None:
    limit = ConcurrencyLimit(limit=2.9, ceiling=4)
    assert [limit.allows(number) for number in (0, 1, 2, 3)] == [True, True, False, False]


def test_a_request_that_lasts_counts_as_used_in_the_next_window_too() -> None:
    limit = ConcurrencyLimit(limit=2.0, ceiling=9).begin(2).observe(0, num_under_way=2)
    assert (limit.limit, limit.most_under_way) == (3.0, 2)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=40))
def test_the_limit_stays_between_floor_and_ceiling(steps: list[tuple[int, int]]) -> None:
    limit, preemptions = ConcurrencyLimit(limit=4.0, ceiling=16, floor=2), 0
    for most, more in steps:
        before = limit.limit
        preemptions += more
        limit = limit.begin(most).observe(preemptions, 0)
        assert 2 <= limit.limit <= 16
        assert limit.limit <= before + 1
        assert not more or limit.limit == max(2.0, 0.75 * before)


def test_a_limit_outside_its_bounds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="floor, limit and ceiling must be 1 or more and ascend, got 1, 9, 8"):
        ConcurrencyLimit(limit=9.0, ceiling=8)
