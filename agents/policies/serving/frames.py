"""The binary bodies of `POST /envgym/generate` and `/envgym/logprobs`: ids and log-probs as arrays, little-endian.

    request  head, settings (JSON: model, cache_salt, sampling_params), token ids int32 [num_new]
    answer   head, token ids int32 [n], log-probs float64 [n], raw log-probs float64 [n] or nothing,
             spans (policy version int64, tokens uint32) each, and where most probable tokens were asked for:
             how many at each place uint32 [n], their ids int32 and their log-probs float64

    row      head, settings (JSON: model, cache_salt), token ids int32 [n]
    its answer: head, log-probs float64 [n], the first of them 0.0

A request names the context that it continues, of which the server has the first `num_kept` tokens: the context and the
answer of an earlier request of the same client. A server that does not have it answers with status 410, and the client
sends the whole context. Numbers are those of the records, bit for bit.
"""

import json
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from envgym.agents.policies.serving.wire import read_sampling
from envgym.agents.policies.vllm import wire as vllm_wire
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling, VersionSpan
from envgym.chats.replies import BadResponse
from envgym.core.segments import TopLogprobs
from envgym.errors import InvalidInput, PolicyFailure

FRAMES: Final = "/envgym/generate"
ROW_FRAMES: Final = "/envgym/logprobs"
FRAME_TYPE: Final = "application/octet-stream"
MAX_CONTEXT: Final = 1 << 23
"""Tokens of a context that a server puts together."""
_MAX_SETTINGS_BYTES: Final = 1 << 17
_REQUEST = struct.Struct("<4sIIIQQ16s16s")
"""Mark, bytes of the settings, tokens kept, new tokens, number of the request that is continued, number of this
request, client, seed."""
_ANSWER = struct.Struct("<4sBBHIII")
"""Mark, why it ended, raw log-probs, unused, tokens, tokens prefilled, spans."""
_SPAN = struct.Struct("<qI")
_ROW = struct.Struct("<4sII")
"""Mark, bytes of the settings, tokens."""
_ROW_ANSWER = struct.Struct("<4sI")
"""Mark, tokens."""
_REQUEST_MARK, _ANSWER_MARK, _ROW_MARK, _ROW_ANSWER_MARK = b"EGQ2", b"EGA2", b"EGR1", b"EGL1"
_ROUNDING: Final = 1e-3
"""Largest log-prob, nats: float32 may round a sum of probabilities to more than 1."""
_REASONS: Final = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)
_NO_RAW, _SAME_RAW, _OWN_RAW = 0, 1, 2
"""Raw log-probs: there are none, those of the distribution sampled from, others."""
_HAS_TOP = 4


class RequestKey(NamedTuple):
    """Which request it is."""

    client: bytes
    """16 random bytes."""
    number: int
    """From 1."""


class FramedRequest(NamedTuple):
    """A request as a server reads it."""

    key: RequestKey
    continues: int
    """Number of the client's request whose context and answer begin this one's context; 0: the context is whole."""
    num_kept: int
    """First tokens of that context and answer."""
    new_tokens: bytes
    """int32, after them."""
    model: str | None
    salt: str
    sampling: Sampling
    seed: int


# ---- the client's side ----------------------------------------------------------------------------------------------


def write_request(
    request: GenerateRequest, key: RequestKey, *, limit: int, model: str, salt: str, continues: int, num_kept: int
) -> bytes:
    """Write a request; without its first `num_kept` tokens, which the server has.

    Raises: PolicyFailure: a token id or the seed has no place in a frame.
    """
    settings = _settings(request.sampling, limit, model, salt)
    tokens = request.token_ids[num_kept:] if num_kept else request.token_ids
    try:
        seed = request.seed.to_bytes(16, "little")
        head = _REQUEST.pack(
            _REQUEST_MARK, len(settings), num_kept, len(tokens), continues, key.number, key.client, seed
        )
        return b"".join((head, settings, struct.pack(f"<{len(tokens)}i", *tokens)))
    except (struct.error, OverflowError) as error:
        must, do = "be numbers of 32 and of 128 bits", "correct the request"
        raise PolicyFailure.of("token ids and seed", must, str(error), where=FRAMES, do=do) from error


@lru_cache(maxsize=256)
def _settings(sampling: Sampling, limit: int, model: str, salt: str) -> bytes:
    params = {**vllm_wire.sampling_settings(sampling, limit=limit), **vllm_wire.NEUTRAL}
    return json.dumps({"model": model, "cache_salt": salt, "sampling_params": params}).encode()


def read_answer(body: bytes, request: GenerateRequest) -> Generation:
    """Read an answer.

    Raises: BadResponse: it is none. PolicyFailure: it holds log-probs that are not finite, or are above 0.
    """
    try:
        mark, reason, kinds, _, count, num_prefilled, num_spans = _ANSWER.unpack_from(body)
        if mark != _ANSWER_MARK:
            raise BadResponse("the answer is no frame of this version")
        reader = _Reader(body, _ANSWER.size)
        token_ids = reader.take("i", count)
        logprobs = reader.take("d", count)
        raw = reader.take("d", count) if kinds & _OWN_RAW else logprobs if kinds & _SAME_RAW else None
        spans = tuple(VersionSpan(*reader.take_struct(_SPAN)) for _ in range(num_spans))
        top = _read_top(reader, count) if kinds & _HAS_TOP else None
        finish = _REASONS[reason]
    except (struct.error, IndexError) as error:
        raise BadResponse(f"the answer is no whole frame: {error}") from error
    if reader.place != len(body):
        raise BadResponse("the answer is longer than it says")
    if not spans or sum(span.num_tokens for span in spans) != count:
        raise BadResponse(f"the versions do not cover each of the {count} tokens once")
    if bool(request.sampling.top_logprobs) != (top is not None):
        raise BadResponse("the answer has other most probable tokens than were asked for")
    if not math.isfinite(sum(logprobs)):
        raise PolicyFailure("the model returned log-probs that are not finite")
    if raw is not None and not math.isfinite(sum(raw)):
        raise PolicyFailure("the model returned raw log-probs that are not finite")
    if max((*logprobs, *(raw or ())), default=0.0) > _ROUNDING:
        raise PolicyFailure(f"the model returned a log-prob above {_ROUNDING:g}")
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=logprobs,
        raw_logprobs=raw,
        finish_reason=finish,
        policy_version=spans[0].policy_version if num_spans == 1 else min(span.policy_version for span in spans),
        version_spans=spans if num_spans > 1 else (),
        num_prefilled=num_prefilled,
        top_logprobs=top,
    )


def write_row(row: Sequence[int], *, model: str, salt: str) -> bytes:
    """Write a request for the log-probs of a row. Raises: PolicyFailure: a token id has no place in a frame."""
    settings = json.dumps({"model": model, "cache_salt": salt}).encode()
    try:
        return b"".join((_ROW.pack(_ROW_MARK, len(settings), len(row)), settings, write_tokens(row)))
    except struct.error as error:
        must, do = "be numbers of 32 bits", "correct the row"
        raise PolicyFailure.of("token ids", must, str(error), where=ROW_FRAMES, do=do) from error


def read_row_answer(body: bytes, row: Sequence[int]) -> tuple[float, ...]:
    """Read the log-prob of every token of a row, 0.0 for the first.

    Raises: BadResponse: they are not there, or not finite.
    """
    if body[: _ROW_ANSWER.size] != _ROW_ANSWER.pack(_ROW_ANSWER_MARK, len(row)):
        raise BadResponse(f"the answer is no frame of the {len(row)} log-probs of the row")
    if len(body) != _ROW_ANSWER.size + 8 * len(row):
        raise BadResponse(f"the answer has {len(body)} bytes, which are not those of {len(row)} log-probs")
    logprobs = struct.unpack_from(f"<{len(row)}d", body, _ROW_ANSWER.size)
    if not math.isfinite(sum(logprobs)):
        raise BadResponse("the answer holds log-probs that are not finite")
    return logprobs


class _Reader:
    """Takes arrays from a body. Raises: struct.error: it is shorter."""

    __slots__ = ("_body", "place")

    def __init__(self, body: bytes, place: int) -> None:
        self._body, self.place = body, place

    def take(self, kind: str, count: int) -> tuple[Any, ...]:  # of numbers
        size = count * (4 if kind in "iI" else 8)
        if self.place + size > len(self._body):  # before anything of that size is made
            raise struct.error(f"{count} numbers are missing")
        values = struct.unpack_from(f"<{count}{kind}", self._body, self.place)
        self.place += size
        return values

    def take_struct(self, form: struct.Struct) -> tuple[Any, ...]:  # of numbers
        values = form.unpack_from(self._body, self.place)
        self.place += form.size
        return values


def _read_top(reader: _Reader, count: int) -> tuple[TopLogprobs, ...]:
    counts = reader.take("I", count)
    ids, values = reader.take("i", sum(counts)), reader.take("d", sum(counts))
    pairs = iter(zip(ids, values, strict=True))
    return tuple(tuple(next(pairs) for _ in range(size)) for size in counts)


# ---- the server's side ----------------------------------------------------------------------------------------------


def read_request(body: bytes) -> FramedRequest:
    """Read a request; no array is made before its size was compared with the body's.

    Raises: InvalidInput: it is none.
    """
    do = "install the same version of envgym on both sides"
    if len(body) < _REQUEST.size or not body.startswith(_REQUEST_MARK):
        got = repr(body[:4]) if len(body) >= _REQUEST.size else f"{len(body)} bytes"
        raise InvalidInput.of(
            "body", f"begin with {_REQUEST_MARK!r} and a head of {_REQUEST.size} bytes", got, where=FRAMES, do=do
        )
    _, size, num_kept, num_new, continues, number, client, seed = _REQUEST.unpack_from(body)
    tokens_at = _REQUEST.size + size
    length = tokens_at + 4 * num_new
    InvalidInput.unless(length == len(body), "body", f"have {length} bytes", len(body), where=FRAMES, do=do)
    must, got = f"have at most {MAX_CONTEXT} tokens", num_kept + num_new
    InvalidInput.unless(got <= MAX_CONTEXT, "context", must, got, where=FRAMES, do="send a shorter one")
    must = f"have at most {_MAX_SETTINGS_BYTES} bytes"
    InvalidInput.unless(size <= _MAX_SETTINGS_BYTES, "settings", must, size, where=FRAMES, do="name fewer stop tokens")
    settings = _read_settings(body[_REQUEST.size : tokens_at])
    key, new_tokens = RequestKey(client, number), body[tokens_at:]
    return FramedRequest(key, continues, num_kept, new_tokens, *settings, int.from_bytes(seed, "little"))


@lru_cache(maxsize=64)
def _read_settings(text: bytes) -> tuple[str | None, str, Sampling]:
    try:
        settings = json.loads(text)
        params, model, salt = settings["sampling_params"], settings.get("model"), settings.get("cache_salt", "")
        if not isinstance(params, dict) or not isinstance(model, str | None) or not isinstance(salt, str):
            raise TypeError(f"model {model!r}, cache_salt {salt!r}, sampling_params {type(params).__name__}")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        must, do = "be JSON with model, cache_salt and sampling_params", "correct it"
        raise InvalidInput.of("settings", must, str(error)[:200], where=FRAMES, do=do) from error
    return model, salt, read_sampling(params, where=FRAMES)


def read_row(body: bytes) -> tuple[str | None, str, tuple[int, ...]]:
    """Read model, salt and token ids of a request for the log-probs of a row. Raises: InvalidInput: it is none."""
    do = "install the same version of envgym on both sides"
    must = f"begin with {_ROW_MARK!r} and a head of {_ROW.size} bytes"
    holds = len(body) >= _ROW.size and body.startswith(_ROW_MARK)
    InvalidInput.unless(holds, "body", must, repr(body[:4]), where=ROW_FRAMES, do=do)
    _, size, count = _ROW.unpack_from(body)
    length = _ROW.size + size + 4 * count
    InvalidInput.unless(length == len(body), "body", f"have {length} bytes", len(body), where=ROW_FRAMES, do=do)
    must = f"have at most {_MAX_SETTINGS_BYTES} bytes"
    InvalidInput.unless(size <= _MAX_SETTINGS_BYTES, "settings", must, size, where=ROW_FRAMES, do="correct them")
    try:
        settings = json.loads(body[_ROW.size : _ROW.size + size])
        model, salt = settings.get("model"), settings.get("cache_salt", "")
        if not isinstance(model, str | None) or not isinstance(salt, str):
            raise TypeError(f"model {model!r}, cache_salt {salt!r}")
    except (ValueError, RecursionError, TypeError, AttributeError) as error:
        must, do = "be JSON with model and cache_salt", "correct it"
        raise InvalidInput.of("settings", must, str(error)[:200], where=ROW_FRAMES, do=do) from error
    return model, salt, read_tokens(body[_ROW.size + size :])


def write_row_answer(logprobs: Sequence[float]) -> bytes:
    """Write the log-probs of a row."""
    return _ROW_ANSWER.pack(_ROW_ANSWER_MARK, len(logprobs)) + struct.pack(f"<{len(logprobs)}d", *logprobs)


def read_tokens(data: bytes) -> tuple[int, ...]:
    """Read token ids, int32."""
    return struct.unpack(f"<{len(data) // 4}i", data)


def write_tokens(token_ids: Sequence[int]) -> bytes:
    """Write token ids as int32."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def write_answer(generation: Generation) -> bytes:
    """Write an answer."""
    logprobs, raw, tops = generation.behavior_logprobs, generation.raw_logprobs, generation.top_logprobs
    kinds = _NO_RAW if raw is None else _SAME_RAW if raw == logprobs else _OWN_RAW
    kinds |= 0 if tops is None else _HAS_TOP
    count, spans = len(generation.token_ids), generation.spans
    reason = _REASONS.index(generation.finish_reason)
    parts = [_ANSWER.pack(_ANSWER_MARK, reason, kinds, 0, count, generation.num_prefilled, len(spans))]
    parts += [write_tokens(generation.token_ids), struct.pack(f"<{count}d", *logprobs)]
    if raw is not None and kinds & _OWN_RAW:
        parts.append(struct.pack(f"<{count}d", *raw))
    parts += [_SPAN.pack(*span) for span in spans]
    if tops is not None:
        flat = [pair for top in tops for pair in top]
        parts.append(struct.pack(f"<{count}I", *map(len, tops)))
        parts += [write_tokens([token for token, _ in flat]), struct.pack(f"<{len(flat)}d", *[v for _, v in flat])]
    return b"".join(parts)
