"""The host's book of sequences under way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.policies.engine.requests import BatchRows, canonical
from envgym.agents.protocols import FinishReason, GenerateRequest, Sampling


def request(*token_ids: int, seed: int = 0, stop: tuple[int, ...] = (), max_new_tokens: int = 8) -> GenerateRequest:
    sampling = Sampling(stop_token_ids=stop, max_new_tokens=max_new_tokens)
    return GenerateRequest(token_ids=token_ids, sampling=sampling, seed=seed)


def add(rows: BatchRows[str], ticket: str, item: GenerateRequest) -> None:
    rows.add(ticket, item, limit=item.sampling.max_new_tokens, version=3, prefilled=len(item.token_ids))


def take(rows: BatchRows[str], *tokens: int, raw: float = -2.0) -> list[bool]:
    count = len(tokens)
    return list(map(bool, rows.take(np.array(tokens), np.full(count, -1.0), np.full(count, raw))))


def test_a_row_ends_at_its_stop_token_or_at_its_limit() -> None:
    rows: BatchRows[str] = BatchRows(4)
    add(rows, "stops", request(1, 2, stop=(9, 7)))
    add(rows, "full", request(1, 2, 3, max_new_tokens=2))
    assert rows.lengths[:2].tolist() == [1, 2], "all but the last token of a context is prefilled"
    assert take(rows, 5, 6) == [False, False]
    over = rows.take(np.array([7, 9]), np.array([-1.0, -3.0]), np.array([-2.0, -4.0]))
    assert over.tolist() == [True, True], "9 is no stop token of the second row, but its limit is reached"
    (stops, full), _ = rows.retire(over)
    assert stops.generation is not None
    assert full.generation is not None
    assert (stops.generation.token_ids, stops.generation.finish_reason) == ((5, 7), FinishReason.STOP)
    assert (full.generation.token_ids, full.generation.finish_reason) == ((6, 9), FinishReason.LENGTH)
    assert full.generation.behavior_logprobs == (-1.0, -3.0)
    assert full.generation.raw_logprobs == (-2.0, -4.0)
    assert (full.generation.policy_version, full.generation.num_prefilled) == (3, 3)


def test_the_last_rows_take_the_places_of_those_that_ended() -> None:
    rows: BatchRows[str] = BatchRows(5)
    for place, name in enumerate("abcde"):
        add(rows, name, request(*range(place + 1), stop=(0,)))
    over = np.array(take(rows, 0, 1, 0, 3, 4))
    ended, moves = rows.retire(over)
    assert [item.ticket for item in ended] == ["a", "c"]
    assert (moves.targets.tolist(), moves.sources.tolist()) == ([0, 2], [3, 4])
    assert rows.tickets == ["d", "b", "e"]
    assert rows.lengths[:3].tolist() == [4, 2, 5]


def test_numbers_that_are_not_finite_end_a_row_without_a_generation() -> None:
    rows: BatchRows[str] = BatchRows(1)
    add(rows, "a", request(1))
    over = np.array(take(rows, 5, raw=float("nan")))
    (ended,), _ = rows.retire(over)
    assert ended.generation is None


def test_the_random_numbers_of_a_request_depend_on_its_seed_alone() -> None:
    def numbers(before: int, limit: int) -> list[float]:
        rows: BatchRows[str] = BatchRows(4)
        for _ in range(before):
            add(rows, "other", request(1, seed=99, max_new_tokens=30))
        add(rows, "own", request(1, 2, seed=5, max_new_tokens=limit))
        found = []
        for _ in range(3):
            found.append(rows.numbers().tolist()[-1])
            take(rows, *[1] * (before + 1))
        return found

    assert numbers(0, 3) == numbers(2, 3) == numbers(3, 20)


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12), data=st.data())
def test_whoever_leaves_every_row_keeps_its_own_tokens(lengths: list[int], data: st.DataObject) -> None:
    rows: BatchRows[int] = BatchRows(len(lengths))
    for ticket, limit in enumerate(lengths):
        rows.add(ticket, request(1, seed=ticket), limit=limit, version=0, prefilled=1)
    step = 0
    while len(rows):
        step += 1
        tokens = np.array([ticket * 100 + step for ticket in rows.tickets])
        over = rows.take(tokens, tokens / 2.0, tokens * 1.0)
        ended, _ = rows.retire(over)
        for ticket, generation in ended:
            assert generation is not None
            assert generation.token_ids == tuple(ticket * 100 + k for k in range(1, lengths[ticket] + 1))
            assert generation.raw_logprobs == tuple(map(float, generation.token_ids))


def test_requests_are_sorted_by_length_then_tokens_then_seed() -> None:
    items = [request(2, 1), request(9), request(1, 2, seed=2), request(1, 2, seed=1)]
    assert [items.index(item) for item in sorted(items, key=canonical)] == [1, 3, 2, 0]
