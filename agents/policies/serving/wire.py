"""The protocol of policy servers: vLLM's routes of 0.32, in JSON, and what the project's own server adds.

POST /inference/v1/generate     token ids in; token ids, log-probs and spans of weight versions out
POST /pause?mode=keep           freeze requests between two tokens        POST /resume
POST /init_weight_transfer_engine {init_info}: opens a process group for weights
POST /start_weight_update       POST /update_weights {update_info}        POST /finish_weight_update {weight_version}
POST /weight_checker {action: checksum}       POST /update_weight_version {new_version}       GET /weight_info
GET  /health                    GET /metrics
GET  /envgym/info               which protocol, model, tokenizer and weights: the project's own server only
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from envgym.agents.policies import _vllm_wire
from envgym.agents.policies.endpoint import BadResponse, Json, get_nested, read_count
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling, VersionSpan, join_spans
from envgym.core.json_types import JsonObject
from envgym.core.segments import TopLogprobs
from envgym.errors import InvalidInput

PROTOCOL: Final = 1
"""Version of the protocol; both sides must have the same."""
GENERATE: Final = "/inference/v1/generate"
INFO: Final = "/envgym/info"
_LEAST = -9999.0
"""What vLLM writes for minus infinity, and for a log-prob that is not a number."""


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


# ---- the client's side ----------------------------------------------------------------------------------------------


def generate_body(request: GenerateRequest, *, limit: int, model: str, salt: str) -> Json:
    """Return what asks for a continuation; a server's own defaults for sampling have no say."""
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    sampling = {**_vllm_wire.sampling_arguments(request, limit=limit), **neutral}
    return {"model": model, "token_ids": request.token_ids, "sampling_params": sampling, "cache_salt": salt}


def logprobs_body(row: Sequence[int], *, model: str, salt: str) -> Json:
    """Return what asks for the log-probs of a row."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
    return {"model": model, "token_ids": row, "sampling_params": sampling, "cache_salt": salt}


def read_generation(content: object, request: GenerateRequest) -> Generation:
    """Read an answer of `/inference/v1/generate`.

    Raises: BadResponse: it is none. PolicyFailure: the engine gave up, or gave numbers that are not finite.
    """
    choice = _first_choice(content)
    token_ids: Any = choice.get("token_ids")
    entries: Any = get_nested(choice, "logprobs", "content")
    if not _is_list_of(token_ids, int) or not isinstance(entries, list) or len(entries) != len(token_ids):
        raise BadResponse("the choice holds no log-prob for every token id")
    try:
        chosen = tuple(_read_number(entry["logprob"]) for entry in entries)
    except (KeyError, TypeError) as error:
        raise BadResponse("the choice holds no log-prob for every token id") from error
    spans = read_spans(choice.get("weight_versions"), len(token_ids))
    generation = _vllm_wire.generation_of(
        request,
        tuple(token_ids),
        chosen,
        finish=choice.get("finish_reason"),
        num_cached=read_count(content, "usage", "prompt_tokens_details", "cached_tokens"),
        version=min(span.policy_version for span in spans),
    )
    raw: Any = choice.get("raw_logprobs")
    return replace(
        generation,
        version_spans=spans if len(spans) > 1 else (),
        raw_logprobs=tuple(map(float, raw)) if _is_list_of(raw, (int, float)) else generation.raw_logprobs,
        top_logprobs=_read_top(entries, request.sampling.top_logprobs),
    )


def read_row_logprobs(content: object, row: Sequence[int]) -> tuple[float, ...]:
    """Read the log-prob of every token of a row, 0.0 for the first. Raises: BadResponse: it is not there."""
    table = get_nested(content, "prompt_logprobs")
    if not isinstance(table, list) or len(table) != len(row):
        raise BadResponse("the answer holds no log-prob for every token of the prompt")
    try:
        return (
            0.0,
            *(_read_number(entry[str(token)]["logprob"]) for token, entry in zip(row[1:], table[1:], strict=True)),
        )
    except (KeyError, TypeError) as error:
        raise BadResponse("the answer lists other tokens of the prompt") from error


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
    if not _is_list_of(ids, int) or not isinstance(params, dict):
        do = "send token_ids and sampling_params"
        raise InvalidInput.of("body", "hold token ids", sorted(content), where=GENERATE, do=do)
    assert isinstance(ids, list), "checked above"
    neutral = {"min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "n": 1}
    for name, value in neutral.items():
        if params.get(name, value) != value:
            do = "leave it out, or serve the model with vLLM"
            raise InvalidInput.of(name, f"be {value} for this server", params[name], where=GENERATE, do=do)
    fields: Any = params  # JSON, whose types pydantic or the policy check
    try:
        return GenerateRequest(
            token_ids=tuple(ids),  # type: ignore[arg-type]  # integers, checked above
            sampling=Sampling(
                temperature=float(fields.get("temperature", 1.0)),
                top_p=float(fields.get("top_p", 1.0)),
                top_k=max(int(fields.get("top_k", 0)), 0),
                max_new_tokens=int(fields.get("max_tokens", 16)),
                stop_token_ids=tuple(map(int, fields.get("stop_token_ids") or ())),
                top_logprobs=int(fields.get("logprobs") or 0),
            ),
            seed=int(fields.get("seed") or 0),
        )
    except (TypeError, ValueError, OverflowError) as error:
        do = "send numbers"
        raise InvalidInput.of("sampling_params", "hold numbers", str(error), where=GENERATE, do=do) from error


def generation_to_json(request: GenerateRequest, found: Generation, *, model: str) -> JsonObject:
    """Write an answer of `/inference/v1/generate`; a greedy sample's log-probs are the raw ones, as vLLM's are."""
    is_greedy = request.sampling.temperature == 0
    chosen = found.raw_logprobs if is_greedy and found.raw_logprobs is not None else found.behavior_logprobs
    tops = found.top_logprobs or ((),) * len(chosen)
    entries: list[Any] = [
        {"token_id": token, "logprob": value, "top_logprobs": [{"token_id": i, "logprob": v} for i, v in top]}
        for token, value, top in zip(found.token_ids, chosen, tops, strict=True)
    ]
    starts = [0]
    for span in found.spans:
        starts.append(starts[-1] + span.num_tokens)
    versions: list[Any] = [
        {"version": str(span.policy_version), "start": start, "end": end}
        for span, (start, end) in zip(found.spans, pairwise(starts), strict=True)
    ]
    reason = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "abort"}
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": list(found.token_ids),
        "logprobs": {"content": entries},
        "finish_reason": reason[found.finish_reason],
        "weight_versions": versions,
    }
    if found.raw_logprobs is not None and found.raw_logprobs != chosen:
        choice["raw_logprobs"] = list(found.raw_logprobs)
    num_prompt = len(request.token_ids)
    cached = num_prompt - found.num_prefilled
    usage: JsonObject = {
        "prompt_tokens": num_prompt,
        "completion_tokens": len(found.token_ids),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"model": model, "choices": [choice], "usage": usage}


def _first_choice(content: object) -> Mapping[str, Any]:  # JSON
    choices = get_nested(content, "choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise BadResponse("the answer holds no choice")
    choice: Mapping[str, Any] = choices[0]
    return choice


def _read_top(entries: list[Any], count: int) -> tuple[TopLogprobs, ...] | None:  # JSON
    if not count:
        return None
    rows = [{int(top["token_id"]): _read_number(top["logprob"]) for top in entry["top_logprobs"]} for entry in entries]
    return tuple(_vllm_wire.most_probable(row, count) for row in rows)


def _is_list_of(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _read_number(value: float) -> float:
    return float(value) if value > _LEAST else float("-inf")
