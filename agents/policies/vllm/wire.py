"""Requests as vLLM wants them, and its answers as generations: from the engine in this process, and over HTTP."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from envgym.agents.policies.endpoint import Json, read_count
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.chats.replies import BadResponse, get_nested
from envgym.core.segments import TopLogprobs
from envgym.errors import PolicyFailure

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_LEAST = -9999.0
"""What vLLM writes over HTTP for minus infinity, and for a log-prob that is not a number."""
NEUTRAL: Final = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Further settings of sampling that change nothing: a server may have other defaults of its own."""
PROMPT_LOGPROBS: Final = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
"""Settings of a request for the log-probs of its prompt."""


def sampling_arguments(request: GenerateRequest, *, limit: int) -> dict[str, Any]:  # of SamplingParams
    """Return how to sample; nothing but the request's own stop tokens ends it."""
    return {**sampling_settings(request.sampling, limit=limit), "seed": request.seed}


def sampling_settings(sampling: Sampling, *, limit: int) -> dict[str, Any]:  # of SamplingParams
    """Return `sampling_arguments` without the seed, which alone differs between the turns of an episode."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": limit,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": sampling.top_logprobs,  # beside that of the sampled token
        "detokenize": False,
    }


def samples_raw(sampling: Sampling) -> bool:
    """Return whether vLLM states the raw log-probs in any case: they are those sampled from, or it is greedy."""
    return sampling.temperature == 0 or sampling.is_raw


# ---- from the engine in this process --------------------------------------------------------------------------------


def read_generation(request: GenerateRequest, answer: Any, *, version: int) -> Generation:  # vLLM's RequestOutput
    """Read vLLM's final answer, whose log-probs are those of the distribution sampled from.

    Raises: PolicyFailure: the engine gave up, or gave numbers that are not finite.
    """
    completion = answer.outputs[0]
    token_ids = tuple(completion.token_ids)
    table = completion.logprobs or []
    top = None
    if count := request.sampling.top_logprobs:
        rows = [{token: float(entry.logprob) for token, entry in row.items()} for row in table]
        top = tuple(most_probable(row, count) for row in rows)
    generation = generation_of(
        request,
        token_ids,
        tuple(float(row[token].logprob) for token, row in zip(token_ids, table, strict=True)),
        finish=completion.finish_reason,
        num_cached=answer.num_cached_tokens or 0,
        version=version,
    )
    return generation if top is None else replace(generation, top_logprobs=top)


def most_probable(logprobs: Mapping[int, float], count: int) -> TopLogprobs:
    """Return the most probable of some tokens, the most probable first; what cannot be sampled is left out."""
    ordered = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))
    return tuple((token, value) for token, value in ordered[:count] if value > -math.inf)


def generation_of(
    request: GenerateRequest,
    token_ids: tuple[int, ...],
    logprobs: tuple[float, ...],
    *,
    finish: object,
    num_cached: int,
    version: int,
) -> Generation:
    """Say what log-probs mean under the request's sampling. Raises: PolicyFailure: as `read_generation`."""
    reason = _FINISH.get(str(finish))
    if reason is None:
        raise PolicyFailure(f"vLLM ended a request with {finish}")
    if not all(map(math.isfinite, logprobs)):
        raise PolicyFailure("the model returned log-probs that are not finite")
    is_greedy = request.sampling.temperature == 0
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=(0.0,) * len(token_ids) if is_greedy else logprobs,
        raw_logprobs=logprobs if samples_raw(request.sampling) else None,
        finish_reason=reason,
        policy_version=version,
        num_prefilled=len(request.token_ids) - num_cached,
    )


def read_row_logprobs(row: tuple[int, ...], answer: Any) -> tuple[float, ...]:  # vLLM's RequestOutput
    """Read the log-prob of every token of a prompt; 0.0 for the first."""
    table = answer.prompt_logprobs
    return (0.0, *(float(entry[token].logprob) for token, entry in zip(row[1:], table[1:], strict=True)))


# ---- over HTTP ------------------------------------------------------------------------------------------------------


def completion_body(request: GenerateRequest, *, limit: int) -> Json:
    """The request to `/completions` for token ids; it overrides a server's own defaults for sampling."""
    body = sampling_arguments(request, limit=limit)
    del body["detokenize"]  # a server always does
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return {"prompt": list(request.token_ids), **body, **NEUTRAL, **ids}


def logprobs_body(row: tuple[int, ...]) -> Json:
    """The request to `/completions` for the log-probs of a prompt."""
    return {"prompt": list(row), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "return_token_ids": True}


def read_models(content: object) -> dict[str, int | None]:
    """Read what is served: each name with its longest context, where that is told; an adapter has its model's.

    Raises: BadResponse: a clause that says what is missing.
    """
    cards = get_nested(content, "data")
    if not isinstance(cards, list) or not all(isinstance(card, Mapping) and "id" in card for card in cards):
        raise BadResponse("the response lists no models")
    lengths = {str(card["id"]): card.get("max_model_len") for card in cards}
    parents = {str(card["id"]): str(card.get("parent")) for card in cards}
    max_lengths = {name: length or lengths.get(parents[name]) for name, length in lengths.items()}
    return {name: length if isinstance(length, int) else None for name, length in max_lengths.items()}


def read_completion(content: object, request: GenerateRequest, *, version: int) -> Generation:
    """Read an answer of `/completions`.

    Raises: BadResponse: it is none. PolicyFailure: one without token ids, or to other tokens than were sent; or as
        `read_generation`.
    """
    choice = _choice(content, request.token_ids)
    token_ids = _ids(choice, "token_ids")
    logprobs: Any = get_nested(choice, "logprobs", "token_logprobs")
    if not is_list_of(logprobs, (int, float)) or len(logprobs) != len(token_ids):
        raise BadResponse("the choice holds no log-prob for every token")
    return generation_of(
        request,
        token_ids,
        tuple(map(read_number, logprobs)),
        finish=choice.get("finish_reason"),
        num_cached=read_count(content, "usage", "prompt_tokens_details", "cached_tokens"),
        version=version,
    )


def read_prompt_logprobs(content: object, row: tuple[int, ...]) -> tuple[float, ...]:
    """Read the log-prob of every token of a prompt; 0.0 for the first. Raises: as `read_completion`."""
    return read_table(_choice(content, row).get("prompt_logprobs"), row)


def read_table(table: object, row: Sequence[int]) -> tuple[float, ...]:
    """Read the listed log-probs of a prompt; 0.0 for the first token. Raises: BadResponse: they are others."""
    if not isinstance(table, list) or len(table) != len(row):
        raise BadResponse("the response holds no log-prob for every token of the prompt")
    try:
        entries = zip(row[1:], table[1:], strict=True)
        return (0.0, *(read_number(entry[str(token)]["logprob"]) for token, entry in entries))
    except (KeyError, TypeError) as error:
        raise BadResponse("the response lists other tokens of the prompt") from error


def first_choice(content: object) -> Mapping[str, Any]:  # JSON
    """Return the one choice of a response. Raises: BadResponse: there is none."""
    choices = get_nested(content, "choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise BadResponse("the response holds no choice")
    choice: Mapping[str, Any] = choices[0]
    return choice


def _choice(content: object, prompt: tuple[int, ...]) -> Mapping[str, Any]:  # JSON
    """Return the one choice, of which token ids are known. Raises: BadResponse, PolicyFailure: as above."""
    choice = first_choice(content)
    if (computed := _ids(choice, "prompt_token_ids")) != prompt:
        got = f"{len(computed)} others" if len(computed) == len(prompt) else f"{len(computed)} of {len(prompt)}"
        do = "let it neither cut prompts nor add tokens to them"
        raise PolicyFailure.of("endpoint", "compute the tokens that it is sent", got, where="completions", do=do)
    return choice


def _ids(choice: Mapping[str, Any], key: str) -> tuple[int, ...]:  # JSON
    ids: Any = choice.get(key)
    if not is_list_of(ids, int):
        do = "serve it with a vLLM that knows return_token_ids, or evaluate by its messages, without --backend vllm"
        got = f"a completion without {key}"
        raise PolicyFailure.of("endpoint", "return token ids", got, where="completions", do=do)
    return tuple(ids)


def is_list_of(value: object, kind: type | tuple[type, ...]) -> bool:
    """Tell whether a JSON value is a list of items of a type; true and false are no numbers."""
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def read_number(value: float) -> float:
    """Read a log-prob as vLLM writes it."""
    return float(value) if value > _LEAST else -math.inf
