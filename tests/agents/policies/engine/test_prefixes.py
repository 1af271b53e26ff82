"""What rows hold, and what new contexts take over, against a cache whose columns are the tokens themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.agents.policies.engine import prefixes as _prefixes
from envgym.agents.policies.engine.prefixes import PrefixTable

Context = tuple[int, ...]


class Tape:
    """A cache of tokens, driven as an engine drives the one of keys and values."""

    def __init__(self, capacity: int) -> None:
        self.prefixes, self.capacity = PrefixTable(capacity), capacity
        self.rows: list[Context] = [()] * capacity
        self.live: list[Context] = []

    def admit(self, *contexts: Context) -> list[tuple[Context, int]]:
        """Let contexts join; return each as it came to lie, with the number of its tokens that were there already."""
        joined: list[tuple[Context, int]] = []
        for wave in self.prefixes.admit(contexts, len(self.live)):
            assert wave.first_row == len(self.live)
            read = [self.rows[row] for row in wave.sources.tolist()]
            for target, content in zip(wave.targets.tolist(), read, strict=True):
                assert target >= len(self.live), "rows in use stay as they are"
                self.rows[target] = content
            for place, (index, start) in enumerate(zip(wave.contexts, wave.starts, strict=True)):
                assert self.rows[wave.first_row + place][:start] == contexts[index][:start]
                self.rows[wave.first_row + place] = contexts[index]
                joined.append((contexts[index], start))
            self.live += [contexts[index] for index in wave.contexts]
        assert len(self.prefixes) <= self.capacity
        return joined

    def end(self, row: int, *sampled: int) -> None:
        """Let the sequence of a row end behind `sampled`; the last row in use takes its place."""
        last = len(self.live) - 1
        self.rows[row] += sampled
        self.prefixes.retire(row, np.array(self.rows[row], np.int64))
        self.rows[row], self.rows[last] = self.rows[last], self.rows[row]
        self.live[row] = self.live[last]
        self.live.pop()
        self.prefixes.swap(np.array([row]), np.array([last]))


@pytest.fixture(autouse=True)
def _two_tokens_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefixes, "MIN_SHARED", 2)


def test_the_next_turn_finds_all_of_the_last_one() -> None:
    tape = Tape(4)
    assert tape.admit((1, 2, 3), (4, 5, 6)) == [((1, 2, 3), 0), ((4, 5, 6), 0)]
    tape.end(0, 7)
    tape.end(0, 8)
    assert tape.admit((1, 2, 3, 7, 9), (4, 5, 6, 8, 9, 9)) == [((1, 2, 3, 7, 9), 4), ((4, 5, 6, 8, 9, 9), 4)]
    assert len(tape.prefixes) == 2, "what the new contexts contain is not kept twice"


def test_a_context_joins_what_is_under_way() -> None:
    tape = Tape(4)
    tape.admit((1, 2, 3))
    assert tape.admit((1, 2, 4)) == [((1, 2, 4), 2)]


def test_tasks_wait_for_the_system_prompt_and_samples_for_their_task() -> None:
    tape, system = Tape(8), (1, 2, 3)
    contexts = [(*system, task, task) for task in (4, 5, 6) for _ in range(2)]
    # The first task computes 5 tokens, the others 2 each behind the 3 they share, and the second samples none.
    assert sorted(start for _, start in tape.admit(*contexts)) == [0, 3, 3, 5, 5, 5]


def test_less_than_is_worth_it_is_computed_again_unless_nothing_is_left() -> None:
    assert Tape(4).admit((1, 2, 3), (1, 5, 6), (9,), (9,)) == [((9,), 0), ((1, 2, 3), 0), ((1, 5, 6), 0), ((9,), 1)]


def test_what_has_been_over_for_longest_makes_room() -> None:
    tape = Tape(3)
    for number in (10, 20, 30):
        tape.admit((number, 1, 1))
        tape.end(0)
    tape.admit((40, 1, 1))
    assert tape.admit((10, 1, 1, 5)) == [((10, 1, 1, 5), 0)], "the oldest had to go"
    tape.end(0)
    assert tape.admit((30, 1, 1, 5)) == [((30, 1, 1, 5), 3)]


def test_nothing_is_known_after_forgetting() -> None:
    tape = Tape(2)
    tape.admit((1, 2, 3))
    tape.end(0)
    tape.prefixes.forget()
    assert len(tape.prefixes) == 0
    assert tape.admit((1, 2, 3)) == [((1, 2, 3), 0)]


def test_a_row_of_no_tokens_is_not_kept() -> None:
    tape = Tape(2)
    tape.admit((), (1,))
    tape.end(0)
    assert tape.admit((2, 3)) == [((2, 3), 0)]


@settings(max_examples=60)
@given(data=st.data(), capacity=st.integers(1, 6))
def test_every_row_holds_what_is_taken_over_from_it(data: st.DataObject, capacity: int) -> None:
    tape, token = Tape(capacity), st.integers(0, 1)
    for _ in range(6):
        room = capacity - len(tape.live)
        if room:
            contexts = data.draw(st.lists(st.lists(token, max_size=7).map(tuple), min_size=1, max_size=room))
            joined = tape.admit(*contexts)
            assert sorted(context for context, _ in joined) == sorted(contexts)
        for _ in range(data.draw(st.integers(0, len(tape.live)))):
            tape.end(data.draw(st.integers(0, len(tape.live) - 1)), *data.draw(st.lists(token, max_size=3)))
        assert tape.rows[: len(tape.live)] == tape.live
