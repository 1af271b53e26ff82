"""A program that owns an engine with two workers: it compares the engine with transformers, then waits to be killed."""

import asyncio
import json
import sys

import torch
from transformers import LlamaForCausalLM

from envgym.agents.models.loading import load
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.protocols import Policy
from tests.agents.policies.small_models import raw_logprobs, request
from tests.agents.policies.vllm.test_served import change

ROW = tuple(range(40, 140))


def loaded(source: str) -> LlamaForCausalLM:
    model = load(source).model
    assert isinstance(model, LlamaForCausalLM)
    return model


def largest_gap(policy: Policy, model: LlamaForCausalLM) -> float:
    found, expected = asyncio.run(policy.compute_logprobs([ROW]))[0], raw_logprobs(model, ROW)
    return max(abs(found[place + 1] - expected[place, token].item()) for place, token in enumerate(ROW[1:]))


def compare(source: str) -> dict[str, float]:
    """Return gaps to transformers: with the first weights, to changed weights, with those, and of a sample, in nats."""
    policy, model = VllmPolicy(source, max_context=300, cache_gib=0.05, threads=1, tensor_parallel=2), loaded(source)
    first = largest_gap(policy, model)
    change(model, 1)
    changed = largest_gap(policy, model)
    policy.update_weights(merged_weights(model), 1)
    updated = largest_gap(policy, model)
    found = asyncio.run(policy.generate(request(ROW, seed=3)))
    after = raw_logprobs(model, ROW + found.token_ids)[len(ROW) - 1 : -1]
    chosen = after.gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    sampled = (torch.tensor(found.behavior_logprobs) - chosen).abs().max().item()
    return {"first": first, "changed": changed, "updated": updated, "sampled": sampled, "version": found.policy_version}


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1])), flush=True)
    input()
