"""The policy of a served model against a server that vLLM really runs, on the CPU, beside transformers' numbers."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.policies.vllm.server_policy import VllmServerPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Policy
from envgym.agents.settings import EndpointSettings, EvalSettings
from envgym.errors import PolicyFailure, UnknownName
from tests.agents.policies.small_models import raw_logprobs, request

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

T = TypeVar("T")
LONG = tuple(range(40, 240))


@pytest.fixture
def url(vllm_url: str) -> str:
    return vllm_url


def ask(url: str, use: Callable[[Policy], Awaitable[T]], name: str = "tiny") -> T:
    async def go() -> T:
        settings = EndpointSettings(base_url=url, model=name, timeout_s=300, max_retries=0)
        async with VllmServerPolicy(settings, version=3) as policy:
            return await use(policy)

    return asyncio.run(go())


async def generate(items: list[GenerateRequest], policy: Policy) -> list[Generation]:
    return list(await asyncio.gather(*[policy.generate(item) for item in items]))


def behind(model: PreTrainedModel, item: GenerateRequest, found: Generation) -> torch.Tensor:
    """Return [T, V]: transformers' log-probs where each sampled token stands."""
    return raw_logprobs(model, item.token_ids + found.token_ids)[len(item.token_ids) - 1 : -1]


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [{}, {"temperature": 0.7}, {"top_k": 20}, {"temperature": 0.0}], ids=str)
def test_log_probs_are_those_of_transformers(url: str, model: LlamaForCausalLM, rules: Any) -> None:
    items = [request(LONG[: 3 + 31 * place], seed=2**62 + place, **rules) for place in range(6)]
    for item, found in zip(items, ask(url, partial(generate, items)), strict=True):
        chosen = torch.tensor(found.token_ids)[:, None]
        raw = behind(model, item, found)
        if found.raw_logprobs is not None:
            assert found.raw_logprobs == pytest.approx(raw.gather(1, chosen)[:, 0].tolist(), abs=1e-2)
        scores = raw / (item.sampling.temperature or 1.0)
        if item.sampling.top_k:
            scores = scores.masked_fill(scores < scores.topk(item.sampling.top_k).values[:, -1:], -torch.inf)
        behavior = scores.log_softmax(-1).gather(1, chosen)[:, 0].tolist()
        assert found.behavior_logprobs == pytest.approx(behavior if item.sampling.temperature else [0.0] * 12, abs=1e-2)
        assert (found.finish_reason, found.policy_version) == (FinishReason.LENGTH, 3)


def test_the_served_model_says_what_the_one_in_this_process_says(
    url: str, policy: VllmPolicy, model: LlamaForCausalLM
) -> None:
    policy.update_weights(merged_weights(model), 0)  # other tests leave other weights
    items = [request(LONG, seed=seed, temperature=float(seed > 0), max_new_tokens=20) for seed in range(4)]
    theirs, ours = ask(url, partial(generate, items)), asyncio.run(generate(items, policy))
    for one, other in zip(theirs, ours, strict=True):
        assert one.token_ids == other.token_ids
        assert one.behavior_logprobs == pytest.approx(other.behavior_logprobs, abs=1e-3)
    assert len({one.token_ids for one in theirs}) == 4, "each request has a seed of its own"


def test_scores_are_those_of_transformers(url: str, model: LlamaForCausalLM) -> None:
    rows = [LONG, LONG[:1], LONG[:2], ()]
    for row, found in zip(rows, ask(url, lambda policy: policy.compute_logprobs(rows)), strict=True):
        whole = raw_logprobs(model, row) if row else torch.zeros(0, 1)
        expected = [whole[place, token].item() for place, token in enumerate(row[1:])]
        assert found == pytest.approx([0.0, *expected] if row else [], abs=1e-2)


# ---- the rest of the contract ---------------------------------------------------------------------------------------


def test_stops_limits_and_the_cache_are_those_of_the_engine(url: str) -> None:
    async def use(policy: Policy) -> None:
        (free,) = await generate([request(LONG, temperature=0.0)], policy)
        stop = free.token_ids[5]
        (found,) = await generate([request(LONG, temperature=0.0, stop_token_ids=(stop, 2))], policy)
        assert found.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert found.finish_reason is FinishReason.STOP
        assert found.num_prefilled == 200 - 6 * 32, "whole blocks were found again"
        policy.set_version(4)
        (found,) = await generate([request(LONG, max_new_tokens=2)], policy)
        assert (found.num_prefilled, found.policy_version) == (200, 4)
        with pytest.raises(PolicyFailure, match="leave one of the model's 1000 positions, got 1000 tokens"):
            await generate([request([50] * 1000)], policy)
        (found,) = await generate([request([50] * 997)], policy)
        assert (len(found.token_ids), found.finish_reason) == (3, FinishReason.LENGTH)
        with pytest.raises(PolicyFailure, match="sequence must fit the model's 1000 positions, got 1001 tokens"):
            await policy.compute_logprobs([(50,) * 1001])

    ask(url, use)
    with pytest.raises(UnknownName, match=r"served model must be a known name, got 'tinny' .*did you mean tiny"):
        ask(url, use, name="tinny")


def test_agents_and_searches_play_with_a_served_model(url: str, tmp_path: Path) -> None:
    settings = EvalSettings.model_validate(
        {
            "run": {"directory": str(tmp_path / "run")},
            "model": {"name": "tiny"},
            "engine": {
                "backend": "vllm_server",
                "endpoint": {"base_url": url, "model": "tiny", "timeout_s": 300},
            },
            "agent": {"name": "tool_calling", "max_turn_tokens": 16, "on_length": "close"},
            "envs": [{"id": "puzzles/guess_number-v0", "settings": {}}],
            "evaluation": {"tasks": 2, "temperature": 1.0, "search": {"name": "best_of", "n": 2}},
        }
    )
    (record,) = run_evaluation(settings).evaluations
    assert record.costs["turns"] > 1
    assert all(None not in rewards for rewards in record.rewards.values()), "none is invalid"
