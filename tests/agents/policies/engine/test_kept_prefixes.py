"""Prefixes that the transformers policy keeps across turns, and shares between tasks: they change no token."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from envgym.agents.policies.engine import llama_forward as _llama_forward
from envgym.agents.policies.engine import prefixes as _prefixes
from envgym.agents.policies.engine.packed_linears import Product
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.errors import PolicyFailure, UnknownName
from tests.agents.policies.small_models import contexts, generate, llama, models, request


def next_turns(items: Sequence[GenerateRequest], found: Sequence[Generation]) -> list[GenerateRequest]:
    """Return the requests of the turn behind: what was sampled, and an answer of uneven length."""
    pairs = enumerate(zip(items, found, strict=True))
    return [
        request((*item.token_ids, *one.token_ids, *range(3, 4 + index % 5)), seed=100 + index)
        for index, (item, one) in pairs
    ]


@pytest.mark.parametrize("name", models())
def test_what_is_kept_of_earlier_turns_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prefixes, "MIN_SHARED", 4)
    torch.manual_seed(0)
    model = models()[name]().eval()
    policy = TransformersPolicy(model, max_batch=16)
    items = [request(context, seed=index) for index, context in enumerate(contexts())]
    found = generate(policy, items)
    for _ in range(2):
        later = next_turns(items, found)
        with monkeypatch.context() as patch:
            patch.setattr(_prefixes, "MIN_SHARED", 1000)
            fresh = generate(TransformersPolicy(model), later)
        again = generate(policy, later)
        for item, one, other, before in zip(later, again, fresh, items, strict=True):
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
            assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=1e-5)
            # All but the last of the 12 tokens sampled before are in the cache.
            assert (one.num_prefilled, other.num_prefilled) == (
                len(item.token_ids) - len(before.token_ids) - 11,
                len(item.token_ids),
            )
        items, found = later, again


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_shared_beginning_is_computed_once_and_changes_nothing(deterministic: bool) -> None:
    model = llama().eval()
    system = tuple(range(3, 3 + 40))
    items = [request((*system, 50 + task, 60, 61), seed=10 * task + k) for task in range(3) for k in range(2)]
    fresh = [generate(TransformersPolicy(model), [item])[0] for item in items]
    found = generate(TransformersPolicy(model, deterministic=deterministic), items)
    # 43 tokens; 3 behind the system prompt; and the last alone for the second sample of a task.
    assert sorted(one.num_prefilled for one in found) == [1, 1, 1, 3, 3, 43]
    for one, other in zip(found, fresh, strict=True):
        assert one.token_ids == other.token_ids
        assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=1e-5)


def learn(model: LlamaForCausalLM) -> None:
    """Change every weight in place, by an optimizer that leaves no trace in the tensors' versions."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [True, False])
def test_who_waits_while_the_model_learns_samples_from_the_new_weights_alone(
    deterministic: bool, dtype: torch.dtype
) -> None:
    model, item = llama().eval().to(dtype), request(range(3, 60))
    old = copy.deepcopy(model)
    policy = TransformersPolicy(model, deterministic=deterministic, shares_weights=True)
    generate(policy, [item])

    async def wait_meanwhile() -> Generation:
        with policy.pause(1):
            waiting = asyncio.create_task(policy.generate(item))
            for _ in range(9):
                await asyncio.sleep(0)  # the request reaches the worker, which waits for the end of the pause
            learn(model)
        return await waiting  # the learner says nothing else before it is served

    found = asyncio.run(wait_meanwhile())
    assert (found.policy_version, found.num_prefilled) == (1, 57)
    row = item.token_ids + found.token_ids
    (new,), (before,) = (asyncio.run(TransformersPolicy(one).compute_logprobs([row])) for one in (model, old))
    assert found.raw_logprobs == pytest.approx(new[57:], abs=1e-4 if dtype == torch.float32 else 0.1)
    assert found.raw_logprobs != pytest.approx(before[57:], abs=1.0), "so old weights would have been noticed"


def test_a_failed_update_changes_nothing() -> None:
    model, item = llama().eval(), request(range(3, 60))
    policy = TransformersPolicy(model)
    before = generate(policy, [item])[0]
    torch.manual_seed(9)
    others = [*LlamaForCausalLM(model.config).state_dict().items(), ("no.such.weight", torch.zeros(1))]
    with pytest.raises(UnknownName):
        policy.update_weights(others, version=1)
    assert generate(policy, [item])[0] == replace(before, num_prefilled=1)


@pytest.mark.parametrize("way", ["update", "in place", "score", "sleep"])
def test_nothing_is_kept_across_new_weights_or_another_use_of_the_cache(way: str) -> None:
    model = llama().eval()
    policy, item = TransformersPolicy(model), request(range(3, 60))
    assert [generate(policy, [item])[0].num_prefilled for _ in range(2)] == [57, 1]
    if way == "update":
        torch.manual_seed(9)
        policy.update_weights(LlamaForCausalLM(model.config).state_dict().items(), version=1)
    elif way == "in place":
        with policy.pause(1):
            learn(model)
    elif way == "score":
        asyncio.run(policy.compute_logprobs([tuple(range(40, 90))]))
    else:
        policy.sleep()
        policy.wake()
    after = generate(policy, [item])[0]
    assert after.num_prefilled == 57
    assert after == replace(generate(TransformersPolicy(model), [item])[0], policy_version=after.policy_version)


def test_numbers_that_are_not_finite_are_not_kept() -> None:
    model = llama()
    policy, item = TransformersPolicy(model), request(range(3, 60))
    head = model.lm_head.forward
    model.lm_head.forward = lambda hidden: head(hidden) * float("nan")  # a planted fault
    with pytest.raises(PolicyFailure, match="not finite"):
        generate(policy, [item])
    model.lm_head.forward = head
    assert generate(policy, [item])[0].num_prefilled == 57


def test_contexts_computed_anew_from_the_same_weights_need_no_new_copies_of_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    copied = _llama_forward._product

    def counted(layers: Sequence[torch.nn.Module], autocast: torch.dtype | None) -> Product:
        product = copied(layers, autocast)
        made.append(product)
        return product

    monkeypatch.setattr(_llama_forward, "_product", counted)
    policy, item = TransformersPolicy(llama().bfloat16()), request(range(3, 60))
    before = generate(policy, [item])[0]
    num_products = len(made)
    assert num_products > 0
    policy.clear_prefix_cache()
    assert generate(policy, [item])[0] == before
    assert len(made) == num_products
    policy.set_version(1)
    assert generate(policy, [item])[0] == replace(before, policy_version=1)
    assert len(made) == 2 * num_products
