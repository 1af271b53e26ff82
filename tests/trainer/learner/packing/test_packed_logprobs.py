"""Packed rows have the log-probs, entropies, states and gradients of the rows themselves."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from envgym.trainer.batch.packs import build_pack, build_trie
from envgym.trainer.batch.rows import TrainRow, pack_multiple
from envgym.trainer.learner.packing.support import pack_hidden_states
from tests.trainer.learner.packing.forest import CPU, Pair, assert_close, both, build, gradients, random_rows

LLAMA = build()
WINDOWED = build("mistral", sliding_window=3)
MIXED = build("gemma3_text", sliding_window=3, layer_types=["sliding_attention", "full_attention"])
LEARNED_POSITIONS = build("gpt2", n_positions=64)


def assert_equal(model: nn.Module, pair: Pair, rng: random.Random, tolerance: float = 1e-12) -> None:
    """Assert equal numbers, and equal products of random cotangents with the Jacobian."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    for found, expected in zip(pair.packed, pair.padded, strict=True):
        assert found is not None
        assert expected is not None
        assert_close(found, expected, tolerance)
        cotangents = torch.randn(expected.shape, dtype=expected.dtype, generator=generator)

        def product(values: Tensor, cotangents: Tensor = cotangents) -> Tensor:
            return gradients(model, (values * cotangents).sum())

        assert_close(product(found), product(expected), tolerance)


@pytest.mark.parametrize(
    "model", [LLAMA, WINDOWED, MIXED, LEARNED_POSITIONS], ids=lambda model: model.config.model_type
)
@given(seed=st.integers(0, 2**32), max_tokens=st.sampled_from([1, 24, 10_000]))
@settings(max_examples=3)
def test_log_probs_and_their_gradients_are_those_of_the_rows(model: nn.Module, seed: int, max_tokens: int) -> None:
    rng = random.Random(seed)
    for pair in both(model, random_rows(rng), max_tokens=max_tokens):
        assert_equal(model, pair, rng)


def test_padding_of_packs_changes_no_number_and_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.trainer.batch.rows.pack_multiple", lambda device: 64)
    rng = random.Random(5)
    for model in (LLAMA, WINDOWED):
        (pair,) = both(model, random_rows(rng))
        assert pair.batch.num_tokens == 64
        assert_equal(model, pair, rng)


def test_packs_are_padded_on_a_gpu_alone() -> None:
    assert [pack_multiple(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [1, 256, 1]


def test_rows_that_share_nothing_are_equal_too() -> None:
    rng = random.Random(2)
    apart = [replace(row, token_ids=(first, *row.token_ids[1:])) for first, row in enumerate(random_rows(rng))]
    (pair,) = both(LLAMA, apart)
    assert pair.batch.num_tokens == sum(map(len, apart))
    assert_equal(LLAMA, pair, rng)


def test_float32_is_equal_to_rounding() -> None:
    model, rng = build(dtype=torch.float32), random.Random(3)
    for pair in both(model, random_rows(rng)):
        assert_equal(model, pair, rng, tolerance=1e-5)


def test_gradient_checkpointing_computes_the_same() -> None:
    """The layers run again in the backward pass, when the pack is no longer under way."""
    model, rng = build(), random.Random(4)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    for pair in both(model, random_rows(rng)):
        assert_equal(model, pair, rng)


def test_lora_trains_the_same() -> None:
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model, rng = get_peft_model(build(), config).double().eval(), random.Random(5)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight)
    for pair in both(model, random_rows(rng)):
        assert_equal(model, pair, rng)


def test_autocast_reaches_packs_and_rows_alike() -> None:
    model = build(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (pair,) = both(model, random_rows(random.Random(6)))
    gap = (pair.packed.logprobs_BT - pair.padded.logprobs_BT).abs().max().item()
    assert gap < 0.1  # bfloat16 keeps 8 bits; a token too many in a softmax moves log-probs by more than 1
    exact = next(both(model, random_rows(random.Random(6)))).packed.logprobs_BT
    assert (exact - pair.packed.logprobs_BT).abs().max().item() > 1e-4


def test_long_rows_span_many_blocks_and_shared_ones_are_far_away() -> None:
    """Prefixes of several blocks of queries, so that blocks mix rows and first keys are masked for some of them."""
    rng = random.Random(7)
    trunk = [rng.randrange(29) for _ in range(300)]
    ids = [[*trunk[:cut], *[rng.randrange(29) for _ in range(size)]] for cut, size in ((300, 9), (280, 170), (40, 300))]
    ids += [[rng.randrange(29) for _ in range(600)], [*trunk[:280], *trunk[:100]]]
    rows = [
        TrainRow(
            token_ids=tuple(row),
            loss_mask=(False, *[rng.random() < 0.2 for _ in row[1:]]),
            advantages=(1.0,) * len(row),
            behavior_logprobs=(0.0,) * len(row),
            weights=(1.0,) * len(row),
        )
        for row in ids
    ]
    for model in (LLAMA, WINDOWED):
        for pair in both(model, rows):
            assert_equal(model, pair, rng)


def test_hidden_states_serve_any_other_head() -> None:
    """A value head reads the place of each token: its gradient, too, is that of the rows."""
    rows = random_rows(random.Random(8))
    trie = build_trie([row.token_ids for row in rows], range(len(rows)))
    masks = [row.loss_mask for row in rows]
    pack = build_pack([row.token_ids for row in rows], masks, trie, range(len(rows)), CPU)
    head_D = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    everywhere_BT = torch.zeros(pack.places_BT.shape, dtype=torch.bool)
    for number, row in enumerate(trie.rows):
        everywhere_BT[number, : len(rows[row])] = True
    values_BT = pack.to_rows(pack_hidden_states(LLAMA, pack) @ head_D, everywhere_BT)
    alone = [
        LLAMA.model(input_ids=torch.tensor([rows[row].token_ids])).last_hidden_state[0] @ head_D for row in trie.rows
    ]
    expected = torch.cat(alone)
    assert_close(values_BT[everywhere_BT], expected)
    assert_close(gradients(LLAMA, values_BT.square().sum()), gradients(LLAMA, expected.square().sum()))
