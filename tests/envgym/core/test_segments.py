"""Segments: which parts go together, and what a cut leaves on either side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.segments import Origin, Segment
from envgym.errors import InvalidInput

SAMPLED = Segment(
    origin=Origin.POLICY,
    token_ids=(10, 11, 12),
    token_strings=("a", "b", "c"),
    behavior_logprobs=(-0.1, -0.2, -0.3),
    raw_logprobs=(-1.0, -2.0, -3.0),
    policy_version=5,
    top_logprobs=(((10, -0.1), (7, -2.4)), ((4, -0.15), (11, -0.2)), ((12, -0.3),)),
)


def test_a_cut_divides_every_list_of_tokens_at_the_same_place() -> None:
    assert SAMPLED.split(1) == (
        Segment(
            origin=Origin.POLICY,
            token_ids=(10,),
            token_strings=("a",),
            behavior_logprobs=(-0.1,),
            raw_logprobs=(-1.0,),
            policy_version=5,
            top_logprobs=(((10, -0.1), (7, -2.4)),),
        ),
        Segment(
            origin=Origin.POLICY,
            token_ids=(11, 12),
            token_strings=("b", "c"),
            behavior_logprobs=(-0.2, -0.3),
            raw_logprobs=(-2.0, -3.0),
            policy_version=5,
            top_logprobs=(((4, -0.15), (11, -0.2)), ((12, -0.3),)),
        ),
    )


def test_what_a_segment_lacks_its_halves_lack_too() -> None:
    prompt = Segment(origin=Origin.PROMPT, token_ids=(1, 2))
    assert prompt.split(1) == (
        Segment(origin=Origin.PROMPT, token_ids=(1,)), Segment(origin=Origin.PROMPT, token_ids=(2,)),
    )  # fmt: skip


@pytest.mark.parametrize("at", [-1, 0, 3, 4])
def test_a_cut_leaves_a_token_on_either_side(at: int) -> None:
    with pytest.raises(InvalidInput, match=r"split position must lie inside 1\.\.2, got"):
        SAMPLED.split(at)


@given(st.integers(2, 9), st.data())
def test_halves_joined_are_the_whole(num_tokens: int, data: st.DataObject) -> None:
    values = tuple(-float(n) for n in range(num_tokens))
    whole = Segment(
        origin=Origin.POLICY,
        token_ids=tuple(range(num_tokens)),
        behavior_logprobs=values,
        raw_logprobs=values[::-1],
        policy_version=0,
    )
    first, second = whole.split(data.draw(st.integers(1, num_tokens - 1)))
    assert len(first) + len(second) == len(whole) == num_tokens
    assert first.token_ids + second.token_ids == whole.token_ids
    assert (first.raw_logprobs or ()) + (second.raw_logprobs or ()) == whole.raw_logprobs


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"token_ids": ()}, "token_ids must hold at least one id, got none"),
        ({"token_strings": ("a",)}, "token_strings must be empty or match the 3 ids, got 1"),
        ({"behavior_logprobs": (-0.1,)}, "behavior_logprobs must match the 3 ids, got 1"),
        ({"raw_logprobs": (-0.1, -0.1, -0.1, -0.1)}, "raw_logprobs must match the 3 ids, got 4"),
        ({"top_logprobs": ((),)}, "top_logprobs must match the 3 ids, got 1"),
        ({"behavior_logprobs": None}, "POLICY segment must carry behavior_logprobs and policy_version"),
        ({"policy_version": None}, "POLICY segment must carry behavior_logprobs and policy_version"),
    ],
)
def test_parts_of_a_sampled_segment_agree(fields: dict[str, object], words: str) -> None:
    parts = {name: getattr(SAMPLED, name) for name in SAMPLED.__slots__}
    with pytest.raises(InvalidInput, match=words):
        Segment(**(parts | fields))


@pytest.mark.parametrize("origin", [origin for origin in Origin if origin is not Origin.POLICY])
@pytest.mark.parametrize(
    "field", [{"behavior_logprobs": (0.0,)}, {"raw_logprobs": (0.0,)}, {"policy_version": 0}, {"top_logprobs": ((),)}]
)
def test_only_what_was_sampled_has_log_probs_a_version_and_trains(origin: Origin, field: dict[str, object]) -> None:
    assert SAMPLED.trains
    assert not Segment(origin=origin, token_ids=(1,)).trains
    with pytest.raises(InvalidInput, match="must belong to POLICY alone"):
        Segment(origin=origin, token_ids=(1,), **field)  # type: ignore[arg-type]  # by name
