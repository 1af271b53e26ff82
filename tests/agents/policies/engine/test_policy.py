"""The transformers policy against plain forward passes of the same model."""

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    LlamaForCausalLM,
)

from envgym.agents.models.weights import widen_head
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.engine.request_queue import WriterPriorityLock
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.errors import InvalidInput, PolicyFailure, UnknownName
from tests.agents.policies.small_models import (
    VOCABULARY,
    contexts,
    generate,
    llama,
    models,
    raw_logprobs,
    request,
)


def test_a_writer_comes_before_a_reader_that_returns_again_and_again() -> None:
    lock, used, ends = WriterPriorityLock(), threading.Event(), threading.Event()
    uses = reads_before_writer = 0

    def use() -> None:
        nonlocal uses, reads_before_writer
        while not ends.is_set():
            with lock.read():
                uses += 1
                reads_before_writer += lock.has_writer
                used.set()

    worker = threading.Thread(target=use)
    worker.start()
    assert used.wait(60)
    for _ in range(20):
        with lock.write():
            held = uses
            assert lock.has_writer
            threading.Event().wait(0.002)
            assert uses == held  # nobody uses it meanwhile
    ends.set()
    worker.join(60)
    assert not lock.has_writer
    assert reads_before_writer <= 2 * 20  # the one under way, and one that was through the door already


def test_a_failed_write_lets_readers_in() -> None:
    lock = WriterPriorityLock()
    with pytest.raises(RuntimeError), lock.write():
        raise RuntimeError
    with lock.read():
        assert not lock.has_writer


# ---- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", models())
def test_greedy_tokens_and_log_probs_are_those_of_a_plain_forward_pass(name: str) -> None:
    torch.manual_seed(0)
    model = models()[name]().eval()
    items = [request(c, temperature=0.0, max_new_tokens=10 + i) for i, c in enumerate(contexts())]
    policy = TransformersPolicy(model, max_batch=8)
    for item, found in zip(items, generate(policy, items), strict=True):
        whole = raw_logprobs(model, item.token_ids + found.token_ids)[len(item.token_ids) - 1 : -1]
        assert tuple(whole.argmax(-1).tolist()) == found.token_ids
        assert found.raw_logprobs == pytest.approx(whole.max(-1).values.tolist(), abs=2e-5)
        assert set(found.behavior_logprobs) == {0.0}
        assert found.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("name", models())
def test_scores_are_those_of_a_plain_forward_pass(name: str) -> None:
    torch.manual_seed(0)
    model = models()[name]().eval()
    rows = [*contexts(), ()]
    scores = asyncio.run(TransformersPolicy(model, max_batch=5).compute_logprobs(rows))
    for row, found in zip(rows, scores, strict=True):
        expected = [0.0] if row else []
        if len(row) > 1:
            whole = raw_logprobs(model, row)
            expected += [whole[place, token].item() for place, token in enumerate(row[1:])]
        assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_bfloat16_stays_near_float32(way: str) -> None:
    model, items = llama(), [request(c, temperature=0.0, max_new_tokens=1) for c in contexts()]
    exact = generate(TransformersPolicy(model), items)
    if way == "weights":
        policy = TransformersPolicy(model.bfloat16())
    else:
        policy = TransformersPolicy(model, autocast=torch.bfloat16)
    for one, other in zip(generate(policy, items), exact, strict=True):
        # bfloat16 keeps 8 bits; the logits here are of size 1.
        assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=0.03)


@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_a_head_in_float32_samples_from_unrounded_logits(way: str) -> None:
    model = llama().bfloat16() if way == "weights" else llama()
    widen_head(model)
    policy = TransformersPolicy(model, autocast=torch.bfloat16 if way == "autocast" else None)
    for item, found in zip(items := [request(c) for c in contexts()], generate(policy, items), strict=True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            logits = model(input_ids=torch.tensor([item.token_ids + found.token_ids])).logits[0]
        logp = logits.log_softmax(-1)[len(item.token_ids) - 1 : -1]
        expected = logp.gather(1, torch.tensor(found.token_ids)[:, None])[:, 0].tolist()
        assert found.behavior_logprobs == pytest.approx(expected, abs=0.03)  # hidden states of 8 bits


def test_sampled_log_probs_state_both_distributions() -> None:
    model = llama().eval()
    item = request(contexts()[4], seed=5, temperature=0.7, top_k=20)
    (found,) = generate(TransformersPolicy(model), [item])
    whole = raw_logprobs(model, item.token_ids + found.token_ids)[len(item.token_ids) - 1 : -1]
    for token, behavior, raw, row in zip(
        found.token_ids, found.behavior_logprobs, found.raw_logprobs or (), whole, strict=True
    ):
        kept = (row / 0.7).topk(20)
        assert token in kept.indices
        assert behavior == pytest.approx((row[token] / 0.7 - kept.values.logsumexp(-1)).item(), abs=2e-5)
        assert raw == pytest.approx(row[token].item(), abs=2e-5)


def test_generation_ends_at_the_stop_token_and_holds_it() -> None:
    model = llama().eval()
    (free,) = generate(TransformersPolicy(model), [request((5, 6), temperature=0.0)])
    stop = free.token_ids[4]
    (found,) = generate(TransformersPolicy(model), [request((5, 6), temperature=0.0, stop_token_ids=(2, stop))])
    assert found.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert found.finish_reason is FinishReason.STOP


def test_a_shared_context_is_prefilled_once() -> None:
    items = [request((5, 6, 7, 8), seed=seed) for seed in range(4)] + [request((5, 6, 7, 9)), request((1, 2))]
    found = generate(TransformersPolicy(llama()), items)
    assert sorted(item.num_prefilled for item in found) == [1, 1, 1, 1, 2, 4]
    assert len({item.token_ids for item in found[:4]}) == 4, "and each sample is its own"


# ---- determinism ----------------------------------------------------------------------------------------------------


def many() -> list[GenerateRequest]:
    return [request(c, seed=i, max_new_tokens=4 + 5 * (i % 4)) for i, c in enumerate(contexts() * 2)]


def test_the_order_of_asking_changes_not_one_bit() -> None:
    model, items = llama(), many()
    expected = generate(TransformersPolicy(model, max_batch=8), items)
    order = list(range(len(items)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        found = generate(TransformersPolicy(model, max_batch=8), [items[index] for index in order])
        assert found == [expected[index] for index in order]


@pytest.mark.parametrize("deterministic", [True, False])
def test_tokens_do_not_depend_on_who_else_is_served(deterministic: bool) -> None:
    model, items = llama(), many()
    alone = [generate(TransformersPolicy(model), [item])[0] for item in items]
    for max_batch in (1, 5, 64):
        found = generate(TransformersPolicy(model, max_batch=max_batch, deterministic=deterministic), items)
        assert [item.token_ids for item in found] == [item.token_ids for item in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.raw_logprobs == pytest.approx(other.raw_logprobs, abs=1e-5)


def test_another_seed_gives_other_tokens() -> None:
    one, other = generate(TransformersPolicy(llama()), [request((5, 6), seed=1), request((5, 6), seed=2)])
    assert one.token_ids != other.token_ids


def test_episodes_of_several_turns_repeat_bit_by_bit_at_one_concurrency() -> None:
    from tests.support.parrots import CharRenderer, Parrot, char_agent, parrot_job, run_episodes

    class Small(CharRenderer):
        """Folds characters into the small vocabulary, so that a model can speak them."""

        stop_token_ids = (1,)

        def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
            return tuple(str(token) for token in token_ids)

    class Folded(TransformersPolicy):
        """Reads characters modulo the vocabulary."""

        async def generate(self, item: GenerateRequest) -> Generation:
            return await super().generate(replace(item, token_ids=tuple(t % VOCABULARY for t in item.token_ids)))

    model = llama()
    agent = char_agent(Small(), max_turn_tokens=6, on_length="close")
    jobs = [parrot_job(lambda: Parrot(max_turns=3), seed=seed, tree_id=str(seed)) for seed in range(9)]

    def run() -> list[object]:
        policy = Folded(model, max_batch=4)
        return list(asyncio.run(run_episodes(jobs, agent, policy, concurrency=6, clock=lambda: 0.0)))

    expected = run()
    assert all(run() == expected for _ in range(3))


def test_a_request_that_a_search_decides_on_late_is_in_the_round_of_the_others() -> None:
    """What an answer sets off may take several passes of the event loop; no thread's timing may decide on the round."""
    sizes: list[int] = []

    class Watched(TransformersPolicy):
        def _serve_or_rest(self, loop: asyncio.AbstractEventLoop) -> None:
            sizes.append(len(self._queue))
            super()._serve_or_rest(loop)

    policy = Watched(llama())

    async def ask(place: int) -> None:
        for number in range(2):
            for _ in range(4 * place):
                await asyncio.sleep(0)
            await policy.generate(request((5, 6), seed=2 * place + number, max_new_tokens=1))

    async def ask_together() -> None:
        await asyncio.gather(*[ask(place) for place in range(4)])

    asyncio.run(ask_together())
    assert [size for size in sizes if size] == [4, 4]


def test_an_adapter_samples_like_its_base_until_it_has_learned_something() -> None:
    peft = pytest.importorskip("peft")
    model, items = llama(), [request((5, 6), seed=seed) for seed in range(3)]
    expected = generate(TransformersPolicy(model), items)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    policy = TransformersPolicy(adapted)
    assert [item.token_ids for item in generate(policy, items)] == [item.token_ids for item in expected]
    torch.manual_seed(1)
    with policy.pause(1), torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    assert [item.token_ids for item in generate(policy, items)] != [item.token_ids for item in expected]


# ---- weights, sleep -------------------------------------------------------------------------------------------------


def test_new_weights_are_copied_and_speak_at_once() -> None:
    model, item = llama(), request((5, 6, 7), temperature=0.0)
    policy = TransformersPolicy(model)
    torch.manual_seed(9)
    other = LlamaForCausalLM(model.config)
    before = generate(policy, [item])[0]
    policy.update_weights(other.state_dict().items(), version=4)
    after = generate(policy, [item])[0]
    assert (before.policy_version, after.policy_version, policy.version) == (0, 4, 4)
    assert after.raw_logprobs == generate(TransformersPolicy(other), [item])[0].raw_logprobs
    assert next(model.parameters()).data_ptr() != next(other.parameters()).data_ptr()


def test_the_learners_own_tensors_are_left_where_they_are() -> None:
    model = llama()
    before = [parameter.data_ptr() for parameter in model.parameters()]
    policy = TransformersPolicy(model, shares_weights=True)
    policy.update_weights(model.named_parameters(), version=1)
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert policy.version == 1


def test_weights_that_do_not_fit_are_refused() -> None:
    policy = TransformersPolicy(llama())
    with pytest.raises(UnknownName, match=r"did you mean model\.norm\.weight"):
        policy.update_weights([("model.nrm.weight", torch.zeros(32))], version=1)
    with pytest.raises(InvalidInput, match=r"must have shape \[32\], got \[31\]"):
        policy.update_weights([("model.norm.weight", torch.zeros(31))], version=1)
    assert policy.version == 0


def test_sampling_leaves_the_module_as_a_learner_needs_it() -> None:
    model = llama().train()
    model.gradient_checkpointing_enable()
    generate(TransformersPolicy(model), [request((5, 6))])
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    ids = torch.tensor([[5, 6, 7]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_sleeping_policy_refuses_and_wakes_with_the_same_answers() -> None:
    policy, item = TransformersPolicy(llama()), request((5, 6))
    before = generate(policy, [item])
    policy.sleep()
    with pytest.raises(PolicyFailure, match="policy must be awake, got asleep"):
        generate(policy, [item])
    policy.wake()
    assert generate(policy, [item]) == before


# ---- failures -------------------------------------------------------------------------------------------------------


def test_logits_that_are_not_finite_are_a_failure_of_the_policy() -> None:
    model = llama()
    policy = TransformersPolicy(model)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(PolicyFailure, match="not finite"):
        generate(policy, [request((5, 6))])


def test_a_model_that_breaks_fails_its_round_and_not_the_next() -> None:
    model, items = llama(), [request((5, 6), seed=seed) for seed in range(3)]
    policy = TransformersPolicy(model)
    expected = generate(policy, items)
    rotations = model.model.rotary_emb
    rotations.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory"))  # a planted fault
    for _ in range(2):
        with pytest.raises(PolicyFailure, match="sampling failed: RuntimeError: out of memory"):
            generate(policy, items)
    del rotations.forward
    assert generate(policy, items) == expected


def test_a_context_beyond_the_models_positions_is_refused_and_one_before_is_cut() -> None:
    policy = TransformersPolicy(llama())
    with pytest.raises(PolicyFailure, match="context must leave one of the model's 128 positions, got 128 tokens"):
        generate(policy, [request([5] * 128)])
    (found,) = generate(policy, [request([5] * 125)])
    assert (len(found.token_ids), found.finish_reason) == (3, FinishReason.LENGTH)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"max_new_tokens": 0}]
)
def test_sampling_out_of_range_is_refused(wrong: dict[str, Any]) -> None:  # one setting of Sampling
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be in range"):
        generate(TransformersPolicy(llama()), [request((5, 6), **wrong)])
    with pytest.raises(InvalidInput, match="context must hold a token"):
        generate(TransformersPolicy(llama()), [request(())])


def test_whoever_goes_away_is_dropped_and_the_others_are_served() -> None:
    policy = TransformersPolicy(llama(max_position_embeddings=100_000))
    endless, short = request((5, 6), max_new_tokens=50_000), request((5, 6), max_new_tokens=3)

    async def leave() -> Generation:
        waiting = asyncio.create_task(policy.generate(endless))
        other = asyncio.create_task(policy.generate(short))
        await asyncio.sleep(0.05)
        waiting.cancel()
        return await asyncio.wait_for(other, timeout=60)

    assert len(asyncio.run(leave()).token_ids) == 3


def test_a_policy_serves_one_event_loop_after_another() -> None:
    policy, item = TransformersPolicy(llama()), request((5, 6))

    async def give_up() -> None:
        task = asyncio.create_task(policy.generate(replace(item, sampling=replace(item.sampling, max_new_tokens=90))))
        await asyncio.sleep(0.01)
        task.cancel()

    (expected,) = generate(policy, [item])
    asyncio.run(give_up())
    (found,) = generate(policy, [item])  # beside what the first loop left, which may change the last bits
    assert found.token_ids == expected.token_ids
    assert found.behavior_logprobs == pytest.approx(expected.behavior_logprobs, rel=1e-5)


@pytest.mark.parametrize("layer_types", [["full_attention", "linear_attention", "full_attention"]])
def test_layers_that_keep_no_keys_are_refused(layer_types: list[str]) -> None:
    model = llama()
    model.config.layer_types = layer_types
    with pytest.raises(InvalidInput, match="attention layers must be full or sliding, got linear_attention"):
        TransformersPolicy(model)
    with pytest.raises(InvalidInput, match="max_batch must be at least 1"):
        TransformersPolicy(llama(), max_batch=0)
