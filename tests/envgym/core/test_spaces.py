"""Any text within the bound, sampled from a seed, carried exactly through both kinds of vector env."""

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Observation
from envgym.core.spaces import MAX_TEXT_CHARS, SharedTexts, UnicodeText
from envgym.errors import InvalidInput
from tests.support.toys import Counter

write: Any = write_to_shared_memory  # Gymnasium types its values as arrays
read: Any = read_from_shared_memory  # likewise

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)
"""Surrogates included: a str may hold them."""


@given(ANY_TEXT)
def test_space_contains_every_text_up_to_its_bound(text: str) -> None:
    assert text in UnicodeText(40)
    assert Observation(text) in UnicodeText(40)
    assert (text + "x" * 41) not in UnicodeText(40)


def test_space_contains_no_bytes_and_no_numbers() -> None:
    assert b"text" not in UnicodeText()
    assert 3 not in UnicodeText()


def test_bound_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="max_length must be at least 1, got 0"):
        UnicodeText(0)


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_sample_lies_in_the_space_and_repeats_for_a_seed(max_length: int, seed: int) -> None:
    text = UnicodeText(max_length, seed=seed).sample()
    assert text in UnicodeText(max_length)
    assert text == UnicodeText(max_length, seed=seed).sample()
    text.encode()  # no lone surrogates


def test_sample_takes_no_mask() -> None:
    with pytest.raises(InvalidInput, match="mask must be None"):
        UnicodeText().sample(mask="x")


def test_spaces_are_equal_where_their_bounds_are() -> None:
    assert UnicodeText(5) == UnicodeText(5, seed=3)
    assert UnicodeText(5) != UnicodeText(6)
    assert hash(UnicodeText(5)) == hash(UnicodeText(5))
    assert pickle.loads(pickle.dumps(UnicodeText(5))) == UnicodeText(5)
    assert UnicodeText().max_length == MAX_TEXT_CHARS
    assert repr(UnicodeText(5)) == "UnicodeText(5)"
    assert not UnicodeText(5).is_np_flattenable


def test_batches_are_tuples_of_spaces() -> None:
    assert len(batch_space(UnicodeText(5, seed=1), 3).sample()) == 3
    batch: Any = batch_differing_spaces([UnicodeText(5), UnicodeText(6)])  # typed as any space
    assert tuple(batch) == (UnicodeText(5), UnicodeText(6))


@given(st.lists(ANY_TEXT, min_size=1, max_size=4), ANY_TEXT)
def test_shared_memory_gives_back_every_text(texts: list[str], later: str) -> None:
    space = UnicodeText(40)
    memory = create_shared_memory(space, len(texts), multiprocessing)
    view = read(space, memory, len(texts))
    assert isinstance(view, SharedTexts)
    assert view[:] == ("",) * len(texts)
    for index, text in enumerate(texts):
        write(space, index, text, memory)
    before: object = copy.deepcopy(view)  # a tuple by then
    assert before == tuple(texts)
    write(space, len(texts) - 1, later, memory)
    assert view[-1] == later, "the view is live"
    assert before == tuple(texts), "its copy is not"


def test_shared_memory_refuses_a_text_beyond_the_bound() -> None:
    memory = create_shared_memory(UnicodeText(3), 1)
    with pytest.raises(InvalidInput, match=r"at most 3 characters, got 4 .*shared_memory=False"):
        write(UnicodeText(3), 0, "long", memory)


def test_shared_texts_end_where_a_tuple_ends() -> None:
    view = read(UnicodeText(3), create_shared_memory(UnicodeText(3), 2), 2)
    assert len(view) == 2
    with pytest.raises(IndexError):
        view[2]


def test_sync_vector_env_shows_what_single_envs_show() -> None:
    vector = SyncVectorEnv([Counter] * 2)
    shown, infos = vector.reset(seed=[5, 6])
    assert shown == tuple(str(Counter().reset(seed=seed).observation) for seed in (5, 6))
    assert [record.seed for record in infos["envgym"]] == [5, 6]
    shown, rewards, terminated, _, _ = vector.step(("DONE", "hello"))
    assert shown == ("", "Use the tool, or say DONE.")
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 0.0], [True, False])
    vector.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_async_vector_env_equals_sync_vector_env(is_shared: bool) -> None:
    sync, parallel = SyncVectorEnv([Counter] * 2), AsyncVectorEnv([Counter] * 2, shared_memory=is_shared)
    try:
        assert sync.reset(seed=[5, 6])[0] == parallel.reset(seed=[5, 6])[0]
        for actions in (("a", "b"), ("DONE", "c"), ("d", "e"), ("f", "DONE")):
            expected, got = sync.step(actions), parallel.step(actions)
            assert expected[0] == got[0]
            for before, now in zip(expected[1:4], got[1:4], strict=True):
                assert before.tolist() == now.tolist()
    finally:
        parallel.close()
        sync.close()
