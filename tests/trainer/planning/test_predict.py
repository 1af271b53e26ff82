"""What a run takes: worked examples, laws of the parts, and what cannot fit."""

from dataclasses import replace
from typing import Any

import pytest

from envgym.errors import UnknownName
from envgym.trainer.planning.constants import control, device_named, device_names, shapes
from tests.support.toy_plan import DEVICE, GIB, SHAPE, WORK, planned


def test_sampling_is_decoding_steps_and_prefills() -> None:
    """8 episodes at once: 2 turns of 50 steps of 10 layers, 8 sequences of 2 * 1e8 operations, and the bytes read.

    A step reads 4 GiB of weights and a cache of 8 * (100 + 70 / 2 + 50 / 2) tokens of 4,000 bytes, which each turn
    copies once. A turn prefills in one more pass; 2 groups prefill a prompt of 100 tokens and 8 episodes a reply of 20.
    """
    cache = 8 * 160 * 4000
    step_s = 10 * 0.001 + 8 * 2e8 / 1e12 + (4 * GIB + cache) / 1e9
    turn_s = 50 * step_s + 10 * 0.001 + 2 * cache / 1e9
    assert planned().sampling_s == pytest.approx(2 * turn_s + PREFILL_S)


PREFILL_S = (2 * 9e7 * (2 * 100 + 8 * 20) + 4 * 10 * 100 * (2 * 100**2 / 2 + 8 * 20 * 160)) / 1e12


def test_sequences_beyond_the_batch_wait_for_another_wave() -> None:
    whole = planned(engine={"max_batch": 8}).sampling_s
    halved = planned(engine={"max_batch": 4}).sampling_s
    cache = 4 * 160 * 4000
    step_s = 10 * 0.001 + 4 * 2e8 / 1e12 + (4 * GIB + cache) / 1e9
    turn_s = 50 * step_s + 10 * 0.001 + 2 * cache / 1e9
    assert halved == pytest.approx(2 * 2 * turn_s + PREFILL_S)
    assert halved > whole


def test_a_cache_that_is_read_slower_than_weights_takes_longer() -> None:
    slower = planned(device=replace(DEVICE, cache_bandwidth=DEVICE.bandwidth / 2)).sampling_s
    assert slower - planned().sampling_s == pytest.approx(100 * 8 * 160 * 4000 / 1e9)


def test_zero_turns_cost_nothing() -> None:
    plan = planned(work=replace(WORK, turns=0))
    assert (plan.sampling_s, plan.control_s, plan.learn_s) == (0.0, 0.0, 0.0)


def test_learning_computes_the_prompt_of_a_group_once_in_each_pack() -> None:
    """A micro-batch of 256 tokens holds a prompt of 100 and one end of 120 tokens, so 8 have a prompt each.

    The head reads 8 * 2 * 50 tokens. A token attends those before it: 5,000 pairs in a prompt, 120 * 160 behind it.
    """
    tokens, pairs = 8 * 220, 8 * (5000 + 120 * 160)
    flops = 6 * (9e7 * tokens + 1e7 * 800) + 12 * 10 * 100 * pairs
    assert planned().tokens == tokens
    assert planned().learn_s == pytest.approx(flops / 1e12 + 8 * 10 * 0.01 + 2 * 16 * GIB / 1e9)
    whole = planned(optim={"micro_batch_tokens": 600})
    tokens, pairs = 2 * 100 + 8 * 120, 2 * 5000 + 8 * 120 * 160
    flops = 6 * (9e7 * tokens + 1e7 * 800) + 12 * 10 * 100 * pairs
    assert whole.tokens == tokens, "a group of 580 tokens is a pack"
    assert whole.learn_s == pytest.approx(flops / 1e12 + 2 * 10 * 0.01 + 2 * 16 * GIB / 1e9)
    padded = planned(optim={"micro_batch_tokens": 256, "packing": False})
    assert padded.tokens == 8 * 220


def test_activations_and_attention_have_rates_of_their_own() -> None:
    device = replace(DEVICE, attention_flops=DEVICE.train_flops / 4, activation_bandwidth=GIB)
    added = planned(device=device).learn_s - planned().learn_s
    pair_flops = 12 * 10 * 100 * 8 * (5000 + 120 * 160)
    assert added == pytest.approx(3 * pair_flops / 1e12 + 8 * 220 / 100), "a token keeps a hundredth of a GiB"


def test_rounds_add_the_controller_and_continuous_service_hides_it() -> None:
    rounds = planned(launch={"servers": 1, "transport": "nccl"})
    assert rounds.collect_s == rounds.sampling_s + rounds.control_s
    rollout = {"groups": 2, "group_size": 4, "deterministic": False}
    continuous = planned(launch={"servers": 1, "transport": "nccl"}, rollout=rollout)
    assert continuous.collect_s == max(continuous.sampling_s, continuous.control_s)


def test_the_canary_is_two_forward_passes_of_a_short_text() -> None:
    checks_s = planned().checks_s
    assert checks_s == pytest.approx(10 * (0.001 + 0.01 / 3) + 2 * 16 * 2 * 1e8 / 1e12)
    assert planned(canary={"enabled": False}).checks_s == 0.0


def test_two_ranks_halve_the_operations_of_an_update() -> None:
    """With a link and passes that take no time, what is left of learning are operations and bytes."""
    free = replace(DEVICE, link=1e30, pass_layer_s=0.0)
    one, two = (planned(device=free, launch={"learners": n}, engine={"device": "cpu"}).learn_s for n in (1, 2))
    assert two == pytest.approx(one / 2)


def test_gathering_adds_to_an_update_where_nothing_overlaps() -> None:
    """4 micro-batches of a rank gather 4 GiB twice and scatter it once, and have 10 layers."""
    launch: dict[str, Any] = {"launch": {"learners": 2}, "engine": {"device": "cpu"}}
    serial = replace(DEVICE, link_overlaps=False, gather_layer_s=0.1)
    added = planned(device=serial, **launch).learn_s - planned(device=replace(DEVICE, link=1e30), **launch).learn_s
    assert added == pytest.approx(4 * (3 * 4 * GIB / 1e9 + 10 * 0.1))


def test_two_ranks_halve_the_state_and_the_operations() -> None:
    one, two = planned(), planned(launch={"learners": 2}, engine={"device": "cpu"}, device=replace(DEVICE, link=1e18))
    for part in ("weights", "gradients", "optimizer"):
        assert two.learner_memory[part] == one.learner_memory[part] / 2
    assert two.learner_memory["gathered layers"] == 2 * 4 * 9_000_000
    assert two.learner_memory["gathered head"] == 4 * 20_000_000
    assert two.learner_memory["whole gradients"] == 4 * (9_000_000 + 20_000_000)
    assert two.learner_memory["whole weights"] == 4 * 110_000_000, "rank 0 samples from the whole model"
    served = planned(launch={"learners": 2, "servers": 1, "transport": "nccl"})
    assert "whole weights" not in served.learner_memory
    assert two.learn_s < one.learn_s


def test_learners_that_wait_for_their_link_are_not_faster() -> None:
    plan = planned(launch={"learners": 2}, engine={"device": "cpu"})
    gathered_s = 4 * 3 * 4 * GIB / 1e9  # 4 micro-batches of a rank
    assert plan.learn_s == pytest.approx(gathered_s + 2 * 16 * GIB / 2 / 1e9)


def test_a_controller_is_the_bottleneck_of_many_servers() -> None:
    launch = {"servers": 8, "transport": "nccl"}
    quick = replace(DEVICE, bandwidth=1e18, train_flops=1e18, decode_layer_s=0.0, pass_layer_s=0.0)
    plan = planned(launch=launch, device=quick, shape=replace(SHAPE, weights=0))
    assert plan.control_s == pytest.approx(8 * 2 * (0.002 + 110e-6))
    workers: dict[str, Any] = {
        "launch": {**launch, "rollout_workers": 3},
        "device": quick,
        "shape": replace(SHAPE, weights=0),
    }
    assert planned(**workers).control_s == pytest.approx(6 * (0.002 + 110e-6)), "of 16 turns one has 6"
    assert plan.bottleneck == "control"
    seconds = plan.sampling_s + plan.control_s + plan.learn_s + plan.update_s + plan.checks_s
    assert plan.step_s == pytest.approx(seconds)


@pytest.mark.parametrize("transport, per_byte", [("files", 2e-9 + 3e-9), ("gloo", 4e-9), ("nccl", 1 / 5e9)])
def test_updates_by_files_grow_with_the_servers_and_others_do_not(transport: str, per_byte: float) -> None:
    plan = planned(launch={"servers": 3, "transport": transport})
    assert plan.update_s == pytest.approx(4 * GIB * per_byte)
    assert planned().update_s == 0.0


def test_sampling_ahead_takes_the_longer_of_two() -> None:
    rollout = {"groups": 2, "group_size": 4, "staleness": 1, "deterministic": False}
    plan = planned(rollout=rollout, launch={"servers": 1, "transport": "nccl"}, correction={"name": "tis"})
    assert plan.overlaps
    assert plan.step_s == max(plan.collect_s, plan.learn_s + plan.update_s + plan.checks_s)


@pytest.mark.parametrize(
    "limit, tokens",
    [(100, 220), (400, 340), (580, 580), (1000, 580), (1160, 1160), (9999, 1160)],
)
def test_the_largest_micro_batch_holds_whole_groups_or_rows_of_one(limit: int, tokens: int) -> None:
    """A group has a prompt of 100 and 4 rows of 120 tokens: 580. There are two groups."""
    parts = planned(optim={"micro_batch_tokens": limit}).learner_memory
    assert parts["activations"] == SHAPE.micro_batch.of(tokens)


def test_memory_of_a_rank_is_state_activations_and_cache() -> None:
    """A micro-batch of 220 tokens keeps 2.2 GiB; the head's 1 GiB is more than 0.22 inside a layer."""
    parts = planned().learner_memory
    assert parts["activations"] == pytest.approx(3.2 * GIB)
    assert parts["cache"] == 8 * 320 * 1000 * 4, "from 128 columns by 192 to 320, which hold 220"
    assert sum(parts.values()) == pytest.approx(16 * GIB + 3.2 * GIB + 10_240_000)


def test_a_process_that_keeps_what_it_frees_has_the_smaller_caches_and_its_libraries() -> None:
    kept = planned(device=replace(DEVICE, keeps_freed=True, libraries=GIB)).learner_memory
    plain = planned().learner_memory
    assert kept == {**plain, "freed caches": 8 * (128 + 192) * 1000 * 4, "libraries": GIB}
    loose = planned(device=replace(DEVICE, heap_overhead=1.25)).learner_memory
    assert loose == {**plain, "unused heap": round((4 + 8 + 3.2) * GIB / 4)}, "of gradients, optimizer, activations"
    whole = planned(device=replace(DEVICE, heap_overhead=1.25), optim={"micro_batch_tokens": 2000}).learner_memory
    assert "unused heap" not in whole, "one micro-batch leaves no holes"


# ---- ranks, adapters, engines ----------------------------------------------------------------------------------------


def test_ranks_gather_in_the_type_of_the_products_and_cast_nothing() -> None:
    """In `mixed`, two of 10 layers of 9e6 parameters in 2 bytes; 20e6 outside of them, and the whole model, in 4."""
    shape = replace(SHAPE, micro_batch=replace(SHAPE.micro_batch, casts=7 * GIB))
    sections: dict[str, Any] = {"model": {"precision": "mixed"}, "engine": {"device": "cpu"}}
    one, two = (planned(shape=shape, launch={"learners": size}, **sections).learner_memory for size in (1, 2))
    assert one["activations"] == two["activations"] + 7 * GIB
    assert two["gathered layers"] == 2 * 2 * 9_000_000
    assert two["gathered head"] == 4 * 20_000_000
    assert two["whole weights"] == 4 * 110_000_000


def test_the_reference_of_ranks_is_a_shard_of_the_whole() -> None:
    shape = replace(SHAPE, sharded_reference=6 * GIB, adapters=GIB)
    one, four = (
        planned(shape=shape, launch={"learners": size}, engine={"device": "cpu"}).learner_memory for size in (1, 4)
    )
    assert one["weights"] == 4 * GIB
    assert four["weights"] == (4 + 6) * GIB / 4
    assert four["whole weights"] == 4 * 110_000_000 + GIB


def test_updates_of_adapters_move_only_these() -> None:
    launch = {"servers": 3, "transport": "nccl"}
    assert planned(launch=launch, shape=replace(SHAPE, adapters=GIB)).update_s == pytest.approx(GIB / 5e9)


def test_requests_of_vllm_are_bounded_by_the_batch_and_by_the_caches_of_its_devices() -> None:
    """A sequence of 220 tokens has 220 * 1000 numbers of 4 bytes: a cache of 4 such holds 4, two devices 8."""
    launch = {"servers": 1, "transport": "nccl", "server_engine": "vllm"}
    work = replace(WORK, env_s=1e6)  # waves are all that counts

    def num_waves(**engine: Any) -> int:
        return round(planned(launch=launch, work=work, engine=engine).sampling_s / 2e6)

    assert num_waves() == 1
    assert num_waves(max_batch=2) == 4
    gib = 4.5 * 220 * 1000 * 4 / GIB
    assert num_waves(cache_gib=gib) == 2
    assert num_waves(cache_gib=gib, tensor_parallel=2) == 1


# ---- constants -------------------------------------------------------------------------------------------------------


def test_every_constant_has_a_source() -> None:
    for name in device_names():
        device = device_named(name)
        assert {line.partition(":")[0] for line in device.sources} == {
            "memory",
            "train",
            "hardware",
            "decode",
            "recorded",
        }
    assert len(control().sources) == 5
    assert list(shapes()) == ["0.5B", "1.5B", "3B", "7B", "14B", "32B"]


def test_an_unknown_device_lists_near_names() -> None:
    with pytest.raises(UnknownName, match="did you mean h100"):
        device_named("h10")
