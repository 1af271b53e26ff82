"""Requests as vLLM wants them, and its answers as generations."""

import math
from typing import Any

from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.errors import PolicyFailure

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def sampling_arguments(request: GenerateRequest, *, limit: int, num_top: int) -> dict[str, Any]:  # of SamplingParams
    """Return how to sample; nothing but the request's own stop tokens ends it."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": limit,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "seed": request.seed,
        "logprobs": num_top,
        "detokenize": False,
    }


def read_generation(
    request: GenerateRequest, answer: Any, *, version: int, num_top: int
) -> Generation:  # vLLM's RequestOutput
    """Read vLLM's final answer, whose log-probs are those of the distribution sampled from.

    Raises: PolicyFailure: the engine gave up, or gave numbers that are not finite.
    """
    said = answer.outputs[0]
    finish = _FINISH.get(said.finish_reason)
    if finish is None:
        raise PolicyFailure(f"vLLM ended a request with {said.finish_reason}")
    token_ids = tuple(said.token_ids)
    table = said.logprobs or []
    chosen = tuple(float(row[token].logprob) for token, row in zip(token_ids, table, strict=True))
    if not all(map(math.isfinite, chosen)):
        raise PolicyFailure("the model gave log-probs that are not finite")
    sampling = request.sampling
    is_greedy = sampling.temperature == 0  # vLLM then states the raw ones
    is_raw = is_greedy or (sampling.temperature == 1 and sampling.top_p == 1 and sampling.top_k == 0)
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=(0.0,) * len(token_ids) if is_greedy else chosen,
        raw_logprobs=chosen if is_raw else None,
        finish_reason=finish,
        policy_version=version,
        num_prefilled=len(request.token_ids) - (answer.num_cached_tokens or 0),
        top_logprobs=tuple(_top(row, num_top) for row in table) if num_top else None,
    )


def _top(row: dict[int, Any], count: int) -> tuple[tuple[int, float], ...]:  # vLLM's Logprob
    """Return the most probable tokens; vLLM adds the one sampled where it is not among them."""
    ranked = sorted(row.items(), key=lambda item: (item[1].rank, item[0]))
    return tuple((token, float(entry.logprob)) for token, entry in ranked[:count])


def read_scores(row: tuple[int, ...], answer: Any) -> tuple[float, ...]:  # vLLM's RequestOutput
    """Read the log-prob of every token of a prompt; 0.0 for the first."""
    table = answer.prompt_logprobs
    return (0.0, *(float(entry[token].logprob) for token, entry in zip(row[1:], table[1:], strict=True)))
