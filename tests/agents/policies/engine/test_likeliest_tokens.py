"""The likeliest tokens beside each sampled one: exact, in order, and without a say in what is sampled."""

from dataclasses import replace

import pytest
import torch

from envgym.agents.policies.engine.policy import TransformersPolicy
from tests.agents.policies.small_models import contexts, generate, llama, raw_logprobs, request


@pytest.mark.parametrize("rules", [{}, {"temperature": 0.7}, {"temperature": 0.0}])
def test_likeliest_tokens_are_those_of_a_plain_forward_pass(rules: dict[str, float]) -> None:
    model = llama().eval()
    # rows that ask for 3, for none and for 5, of different lengths, in one batch of two: rows change places
    items = [request(contexts()[n], seed=n, top_logprobs=n, max_new_tokens=3 + n, **rules) for n in (3, 0, 5)]
    for item, found in zip(items, generate(TransformersPolicy(model, max_batch=2), items), strict=True):
        if not item.sampling.top_logprobs:
            assert found.top_logprobs is None
            continue
        whole = raw_logprobs(model, item.token_ids + found.token_ids)[len(item.token_ids) - 1 : -1]
        expected = (whole / (rules.get("temperature") or 1.0)).log_softmax(-1).topk(item.sampling.top_logprobs)
        assert found.top_logprobs is not None
        assert [[token for token, _ in place] for place in found.top_logprobs] == expected.indices.tolist()
        values = [[value for _, value in place] for place in found.top_logprobs]
        assert torch.tensor(values).allclose(expected.values, atol=2e-5)


def test_likeliest_tokens_that_cannot_be_sampled_are_left_out() -> None:
    (found,) = generate(TransformersPolicy(llama().eval()), [request(contexts()[1], top_k=2, top_logprobs=4)])
    assert found.top_logprobs is not None
    assert {len(place) for place in found.top_logprobs} == {2}
    for place, token, behavior in zip(found.top_logprobs, found.token_ids, found.behavior_logprobs, strict=True):
        assert dict(place)[token] == pytest.approx(behavior, abs=1e-6)


def test_asking_for_the_likeliest_tokens_changes_nothing_else() -> None:
    model, item = llama().eval(), request(contexts()[2], seed=3)
    (plain,) = generate(TransformersPolicy(model), [item])
    (more,) = generate(TransformersPolicy(model), [request(contexts()[2], seed=3, top_logprobs=2)])
    assert replace(more, top_logprobs=None) == plain
