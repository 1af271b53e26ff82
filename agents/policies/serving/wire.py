"""The protocol of policy servers: vLLM's routes of 0.32, in JSON, and what the project's own server adds.

POST /inference/v1/generate     token ids in; token ids, log-probs and spans of weight versions out
POST /pause?mode=keep           freeze requests between two tokens        POST /resume
POST /init_weight_transfer_engine {init_info}: joins a process group for weights
POST /start_weight_update       POST /update_weights {update_info}        POST /finish_weight_update {weight_version}
POST /weight_checker {action: checksum}       POST /update_weight_version {new_version}       GET /weight_info
GET  /health                    GET /metrics
GET  /envgym/info               which protocol, model, tokenizer and weights: the project's own servers only
POST /envgym/generate           as /inference/v1/generate, in arrays (`frames`): the project's own servers only
POST /envgym/logprobs           log-probs of a row, in arrays: the project's own servers only
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from envgym.agents.policies.endpoint import Json, read_count
from envgym.agents.policies.vllm import wire as vllm_wire
from envgym.agents.policies.vllm.wire import first_choice, is_list_of, read_number
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling, VersionSpan, join_spans
from envgym.chats.replies import BadResponse, get_nested
from envgym.core.json_types import JsonObject
from envgym.core.segments import TopLogprobs
from envgym.errors import InvalidInput
from envgym.runtime.http.server import HttpReply

PROTOCOL: Final = 4
"""Version of the protocol; both sides must have the same."""
GENERATE: Final = "/inference/v1/generate"
INFO: Final = "/envgym/info"


def error_reply(status: int, detail: str) -> HttpReply:
    """Return a reply of one sentence, as vLLM writes it."""
    return HttpReply.of_json({"error": {"message": detail, "code": int(status)}}, status)


class ServerInfo(NamedTuple):
    """What a server says of itself."""

    engine: str
    """`transformers`, or `vllm`."""
    model: str
    """The name it is served by."""
    protocol: int
    weight_version: str
    max_context: int | None
    """Positions of the model, for context and sample."""
    model_digest: str | None = None
    """Of names and shapes of all weights; None: it does not say."""
    tokenizer_digest: str | None = None
    """Of the vocabulary; None: it does not say, or has none."""
    dtype: str | None = None
    """Of the weights."""
    instance: str = ""
    """Another one after every start."""
    transports: Sequence[str] = ("files",)
    """Ways by which it takes new weights; a vLLM that was started by itself takes none."""
    has_frames: bool = False
    """Whether it answers `/envgym/generate`."""


# ---- the client's side ----------------------------------------------------------------------------------------------


def generate_body(request: GenerateRequest, *, limit: int, model: str, salt: str) -> Json:
    """The request for a continuation; it overrides a server's own defaults for sampling."""
    sampling = {**vllm_wire.sampling_arguments(request, limit=limit), **vllm_wire.NEUTRAL}
    return {"model": model, "token_ids": request.token_ids, "sampling_params": sampling, "cache_salt": salt}


def logprobs_body(row: Sequence[int], *, model: str, salt: str) -> Json:
    """The request for the log-probs of a row."""
    return {"model": model, "token_ids": row, "sampling_params": vllm_wire.PROMPT_LOGPROBS, "cache_salt": salt}


def read_generation(content: object, request: GenerateRequest) -> Generation:
    """Read an answer of `/inference/v1/generate`.

    Raises: BadResponse: it is none. PolicyFailure: the engine gave up, or gave numbers that are not finite.
    """
    choice = first_choice(content)
    token_ids: Any = choice.get("token_ids")
    entries: Any = get_nested(choice, "logprobs", "content")
    if not is_list_of(token_ids, int) or not isinstance(entries, list) or len(entries) != len(token_ids):
        raise BadResponse("the choice holds no log-prob for every token id")
    try:
        logprobs = tuple(read_number(entry["logprob"]) for entry in entries)
    except (KeyError, TypeError) as error:
        raise BadResponse("the choice holds no log-prob for every token id") from error
    spans = read_spans(choice.get("weight_versions"), len(token_ids))
    generation = vllm_wire.generation_of(
        request,
        tuple(token_ids),
        logprobs,
        finish=choice.get("finish_reason"),
        num_cached=read_count(content, "usage", "prompt_tokens_details", "cached_tokens"),
        version=min(span.policy_version for span in spans),
    )
    raw: Any = choice.get("raw_logprobs")
    return replace(
        generation,
        version_spans=spans if len(spans) > 1 else (),
        raw_logprobs=tuple(map(float, raw)) if is_list_of(raw, (int, float)) else generation.raw_logprobs,
        top_logprobs=_read_top(entries, request.sampling.top_logprobs),
    )


def read_row_logprobs(content: object, row: Sequence[int]) -> tuple[float, ...]:
    """Read the log-prob of every token of a row, 0.0 for the first. Raises: BadResponse: it is not there."""
    return vllm_wire.read_table(get_nested(content, "prompt_logprobs"), row)


def read_spans(content: object, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Read which version sampled which tokens; at least one span.

    Raises: BadResponse: versions that are no numbers, or do not cover every token once and in order.
    """
    try:
        spans = [(int(span["version"]), int(span["start"]), int(span["end"])) for span in content]  # type: ignore[attr-defined]  # JSON
    except (KeyError, TypeError, ValueError) as error:
        raise BadResponse("the choice holds no weight_versions whose versions are numbers") from error
    ends = [0, *(end for _, _, end in spans)]
    if [start for _, start, _ in spans] != ends[:-1] or ends[-1] != num_tokens or any(a > b for a, b in pairwise(ends)):
        raise BadResponse(f"the weight_versions do not cover each of the {num_tokens} tokens once")
    return join_spans(VersionSpan(version, end - start) for version, start, end in spans) or (
        VersionSpan(spans[-1][0] if spans else 0, 0),
    )


def read_metrics(text: str) -> int:
    """Return how many sequences a server has preempted since it started, from its Prometheus page."""
    counts = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("vllm:num_preemptions")]
    return int(sum(float(value) for name, value in counts if "created" not in name))


# ---- the server's side ----------------------------------------------------------------------------------------------


def read_request(content: JsonObject) -> GenerateRequest:
    """Read the body of `/inference/v1/generate`. Raises: InvalidInput: it is none, or asks what is not served."""
    ids, params = content.get("token_ids"), content.get("sampling_params", {})
    if not is_list_of(ids, int) or not isinstance(params, dict):
        do = "send token_ids and sampling_params"
        raise InvalidInput.of("body", "hold token ids", sorted(content), where=GENERATE, do=do)
    assert isinstance(ids, list), "checked above"
    sampling, seed = read_sampling(params, where=GENERATE), params.get("seed") or 0
    try:
        return GenerateRequest(token_ids=tuple(ids), sampling=sampling, seed=int(seed))  # type: ignore[arg-type]  # JSON
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_numbers(error, GENERATE) from error


def read_sampling(params: JsonObject, *, where: str) -> Sampling:
    """Read `sampling_params` except the seed. Raises: InvalidInput: they ask what is not served, or are no numbers."""
    for name, value in {**vllm_wire.NEUTRAL, "n": 1}.items():
        if params.get(name, value) != value:
            do = "leave it out, or serve the model with vLLM"
            raise InvalidInput.of(name, f"be {value:g} for this server", params[name], where=where, do=do)
    fields: Any = params  # JSON, whose types pydantic or the policy check
    try:
        return Sampling(
            temperature=float(fields.get("temperature", 1.0)),
            top_p=float(fields.get("top_p", 1.0)),
            top_k=max(int(fields.get("top_k", 0)), 0),
            max_new_tokens=int(fields.get("max_tokens", 16)),
            stop_token_ids=tuple(map(int, fields.get("stop_token_ids") or ())),
            top_logprobs=int(fields.get("logprobs") or 0),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_numbers(error, where) from error


def _no_numbers(error: Exception, where: str) -> InvalidInput:
    return InvalidInput.of("sampling_params", "hold numbers", str(error), where=where, do="send numbers")


def generation_to_json(request: GenerateRequest, generation: Generation, *, model: str) -> JsonObject:
    """Write an answer of `/inference/v1/generate`; a greedy sample's log-probs are the raw ones, as vLLM's are."""
    is_greedy = request.sampling.temperature == 0
    logprobs = (
        generation.raw_logprobs if is_greedy and generation.raw_logprobs is not None else generation.behavior_logprobs
    )
    tops = generation.top_logprobs or ((),) * len(logprobs)
    entries: list[Any] = [
        {"token_id": token, "logprob": value, "top_logprobs": [{"token_id": i, "logprob": v} for i, v in top]}
        for token, value, top in zip(generation.token_ids, logprobs, tops, strict=True)
    ]
    starts = [0]
    for span in generation.spans:
        starts.append(starts[-1] + span.num_tokens)
    versions: list[Any] = [
        {"version": str(span.policy_version), "start": start, "end": end}
        for span, (start, end) in zip(generation.spans, pairwise(starts), strict=True)
    ]
    reason = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "abort"}
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": list(generation.token_ids),
        "logprobs": {"content": entries},
        "finish_reason": reason[generation.finish_reason],
        "weight_versions": versions,
    }
    if generation.raw_logprobs is not None and generation.raw_logprobs != logprobs:
        choice["raw_logprobs"] = list(generation.raw_logprobs)
    num_prompt = len(request.token_ids)
    cached = num_prompt - generation.num_prefilled
    usage: JsonObject = {
        "prompt_tokens": num_prompt,
        "completion_tokens": len(generation.token_ids),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"model": model, "choices": [choice], "usage": usage}


def _read_top(entries: list[Any], count: int) -> tuple[TopLogprobs, ...] | None:  # JSON
    if not count:
        return None
    rows = [{int(top["token_id"]): read_number(top["logprob"]) for top in entry["top_logprobs"]} for entry in entries]
    return tuple(vllm_wire.most_probable(row, count) for row in rows)
