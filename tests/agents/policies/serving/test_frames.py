"""Requests and answers in arrays: read back bit for bit, and refused in one sentence where they are none."""

import math
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.policies.serving import frames
from envgym.agents.policies.serving.frames import RequestKey
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling, VersionSpan, join_spans
from envgym.chats.replies import BadResponse
from envgym.errors import InvalidInput, PolicyFailure

KEY = RequestKey(bytes(range(16)), 7)
TOKENS = st.integers(-(2**31), 2**31 - 1)
LOGPROBS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=0)


def written(request: GenerateRequest, **options: Any) -> bytes:
    named: dict[str, Any] = {"limit": 9, "model": "m", "salt": "3.0", "continues": 0, "num_kept": 0}
    return frames.write_request(request, KEY, **(named | options))


def example(**options: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=(5, 6, 7, 8), sampling=Sampling(stop_token_ids=(2,)), seed=2**100 + 1, **options)


# ---- requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_its_head_its_settings_and_four_bytes_a_token() -> None:
    body = written(example(), continues=4, num_kept=3)
    assert body[:4] == b"EGQ2"
    assert struct.unpack_from("<IIIQQ", body, 4)[1:] == (3, 1, 4, 7)
    assert body[32:48] == KEY.client
    assert len(body) == 64 + struct.unpack_from("<I", body, 4)[0] + 4
    assert body[-4:] == b"\x08\x00\x00\x00"


@given(st.lists(TOKENS, min_size=1, max_size=50), st.integers(0, 2**128 - 1), st.data())
def test_a_server_reads_what_a_client_wrote(token_ids: list[int], seed: int, data: st.DataObject) -> None:
    num_kept = data.draw(st.integers(0, len(token_ids) - 1))
    sampling = Sampling(
        temperature=data.draw(st.floats(0, 3)), top_p=0.25, top_k=3, stop_token_ids=(1, 2**40), top_logprobs=2
    )
    request = GenerateRequest(token_ids=tuple(token_ids), sampling=sampling, seed=seed)
    framed = frames.read_request(written(request, continues=5 if num_kept else 0, num_kept=num_kept))
    assert frames.read_tokens(framed.new_tokens) == request.token_ids[num_kept:]
    assert framed.sampling == replace(sampling, max_new_tokens=9)
    assert (framed.key, framed.seed, framed.num_kept, framed.model, framed.salt) == (KEY, seed, num_kept, "m", "3.0")


@pytest.mark.parametrize(
    "change", [{"token_ids": (2**31,)}, {"token_ids": (-(2**31) - 1,)}, {"seed": -1}, {"seed": 2**128}]
)
def test_numbers_without_a_place_in_a_frame_are_a_policy_failure(change: dict[str, Any]) -> None:
    with pytest.raises(PolicyFailure, match="token ids and seed must be numbers of 32 and of 128 bits"):
        written(replace(example(), **change))


def refused(body: bytes) -> str:
    with pytest.raises(InvalidInput) as error:
        frames.read_request(body)
    return str(error.value)


def test_a_request_that_is_cut_or_longer_than_it_says_is_refused() -> None:
    body = written(example())
    for size in range(len(body)):
        assert " must " in refused(body[:size])
    assert f"body must have {len(body)} bytes, got {len(body) + 1}" in refused(body + b"x")


def test_a_request_of_another_version_is_refused() -> None:
    assert "body must begin with b'EGQ2' and a head of 64 bytes, got b'EGQ1'" in refused(
        b"EGQ1" + written(example())[4:]
    )


@pytest.mark.parametrize(
    "place, value, reason",
    [
        (4, 2**32 - 1, "bytes, got"),
        (8, 2**32 - 1, "context must have at most 8388608 tokens"),
        (12, 2**32 - 1, "bytes, got"),
    ],
)
def test_sizes_are_compared_before_anything_of_that_size_is_made(place: int, value: int, reason: str) -> None:
    body = bytearray(written(example()))
    struct.pack_into("<I", body, place, value)
    assert reason in refused(bytes(body))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b"{}",
        b"\xff",
        b"[" * 5000,
        b'{"sampling_params": 1}',
        b'{"sampling_params": {}, "model": 3}',
        b'{"sampling_params": {}, "cache_salt": 3}',
        b'{"sampling_params": {"temperature": "hot"}}',
        b'{"sampling_params": {"n": 2}}',
    ],
)
def test_settings_that_are_none_are_refused(text: bytes) -> None:
    head = struct.pack("<4sIIIQQ16s16s", b"EGQ2", len(text), 0, 0, 0, 1, KEY.client, bytes(16))
    assert " must " in refused(head + text)


def test_settings_have_a_limit() -> None:
    text = b" " * (1 << 17) + b"{}"
    head = struct.pack("<4sIIIQQ16s16s", b"EGQ2", len(text), 0, 0, 0, 1, KEY.client, bytes(16))
    assert "settings must have at most 131072 bytes" in refused(head + text)


# ---- answers --------------------------------------------------------------------------------------------------------


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    token_ids = tuple(draw(st.lists(TOKENS, max_size=12)))
    count = len(token_ids)
    logprobs = tuple(draw(st.lists(LOGPROBS, min_size=count, max_size=count)))
    other = tuple(draw(st.lists(LOGPROBS, min_size=count, max_size=count)))
    cut = draw(st.integers(0, count))
    spans = join_spans((VersionSpan(3, cut), VersionSpan(4, count - cut)))
    pairs = st.tuples(TOKENS, LOGPROBS)
    top = tuple(tuple(draw(st.lists(pairs, max_size=3))) for _ in token_ids)
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=logprobs,
        raw_logprobs=draw(st.sampled_from([None, logprobs, other])),
        finish_reason=draw(st.sampled_from(FinishReason)),
        policy_version=spans[0].policy_version if spans else 9,
        version_spans=spans if len(spans) > 1 else (),
        num_prefilled=draw(st.integers(0, 2**32 - 1)),
        top_logprobs=draw(st.sampled_from([None, top])),
    )


def asked(generation: Generation) -> GenerateRequest:
    return replace(example(), sampling=Sampling(top_logprobs=0 if generation.top_logprobs is None else 3))


@given(generations())
def test_a_client_reads_the_generation_that_a_server_wrote_bit_for_bit(generation: Generation) -> None:
    body = frames.write_answer(generation)
    if math.isfinite(sum(generation.behavior_logprobs)):
        assert frames.read_answer(body, asked(generation)) == generation


SMALL = Generation(
    token_ids=(1, 2),
    behavior_logprobs=(-0.5, -0.25),
    raw_logprobs=(-0.5, -1.0),
    finish_reason=FinishReason.STOP,
    policy_version=3,
    top_logprobs=(((1, -0.5),), ((2, -0.25), (3, -2.0))),
)


def test_an_answer_that_is_cut_or_longer_than_it_says_is_none() -> None:
    body = frames.write_answer(SMALL)
    for size in range(len(body)):
        with pytest.raises(BadResponse):
            frames.read_answer(body[:size], asked(SMALL))
    with pytest.raises(BadResponse, match="longer than it says"):
        frames.read_answer(body + b"x", asked(SMALL))


@given(st.integers(0, 23), st.integers(0, 255))
def test_no_head_of_an_answer_raises_anything_else(place: int, value: int) -> None:
    body = bytearray(frames.write_answer(SMALL))
    body[place] = value
    with suppress(BadResponse, PolicyFailure):
        frames.read_answer(bytes(body), asked(SMALL))


def test_versions_that_do_not_cover_the_tokens_are_no_answer() -> None:
    wrong = replace(SMALL, version_spans=(VersionSpan(3, 1), VersionSpan(4, 2)))
    with pytest.raises(BadResponse, match="do not cover each of the 2 tokens once"):
        frames.read_answer(frames.write_answer(wrong), asked(SMALL))


def test_logprobs_that_are_not_finite_are_a_policy_failure() -> None:
    for value in (math.nan, math.inf, -math.inf):
        wrong = replace(SMALL, behavior_logprobs=(-0.5, value))
        with pytest.raises(PolicyFailure, match="not finite"):
            frames.read_answer(frames.write_answer(wrong), asked(SMALL))


def test_raw_logprobs_are_checked_as_logprobs_are_and_none_is_above_0() -> None:
    for wrong, told in (
        (replace(SMALL, raw_logprobs=(-0.5, math.nan)), "raw log-probs that are not finite"),
        (replace(SMALL, raw_logprobs=(-0.5, 0.01)), "a log-prob above"),
        (replace(SMALL, behavior_logprobs=(0.01, -0.5)), "a log-prob above"),
    ):
        with pytest.raises(PolicyFailure, match=told):
            frames.read_answer(frames.write_answer(wrong), asked(SMALL))
    rounded = replace(SMALL, behavior_logprobs=(1e-6, -0.5))
    assert frames.read_answer(frames.write_answer(rounded), asked(SMALL)).behavior_logprobs == (1e-6, -0.5)


def test_most_probable_tokens_are_those_that_were_asked_for() -> None:
    with pytest.raises(BadResponse, match="other most probable tokens"):
        frames.read_answer(frames.write_answer(SMALL), example())


# ---- rows -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(TOKENS, LOGPROBS), max_size=30))
def test_a_row_and_its_log_probs_are_read_as_they_were_written(pairs: list[tuple[int, float]]) -> None:
    row, logprobs = tuple(token for token, _ in pairs), tuple(value for _, value in pairs)
    assert frames.read_row(frames.write_row(row, model="m", salt="3.0")) == ("m", "3.0", row)
    if math.isfinite(sum(logprobs)):
        assert frames.read_row_answer(frames.write_row_answer(logprobs), row) == logprobs


def test_rows_that_are_none_are_refused_in_one_sentence() -> None:
    body = frames.write_row((1, 2), model="m", salt="s")
    for broken in (body[:-1], body + b"0", b"EGQ2" + body[4:], body[:4], body[:12] + b"[" + body[13:]):
        with pytest.raises(InvalidInput, match=r"must .* \(/envgym/logprobs\)"):
            frames.read_row(broken)
    with pytest.raises(PolicyFailure, match="token ids must be numbers of 32 bits"):
        frames.write_row((2**31,), model="m", salt="s")
    answer = frames.write_row_answer((0.0, -1.0))
    for broken in (answer[:-1], b"", answer + b"0", frames.write_row_answer((0.0, math.nan))):
        with pytest.raises(BadResponse):
            frames.read_row_answer(broken, (1, 2))
    with pytest.raises(BadResponse, match="3 log-probs"):
        frames.read_row_answer(answer, (1, 2, 3))
