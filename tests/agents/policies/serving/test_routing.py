"""Which server a request goes to."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.policies.serving.routing import BLOCK, PrefixRouter, ServerLoad, block_hashes

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
