"""A model packs only if it computes the same in a pack; any other keeps its rows, and its user is told."""

import dataclasses
import itertools
import warnings
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from envgym.trainer.batch.packs import build_trie
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.packing.attention import NAME
from envgym.trainer.learner.packing.support import _PROBE, can_pack
from envgym.trainer.learner.settings import OptimSettings
from tests.trainer.learner.packing.forest import CPU, SIZES, build, random_rows

PER_TOKEN = ("token_ids", "loss_mask", "advantages", "behavior_logprobs", "weights")


def other(family: str, **config: object) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **config))
    assert isinstance(model, PreTrainedModel)
    return model


def learner(model: PreTrainedModel, **optim: object) -> Learner:
    return Learner(model, optim=OptimSettings.model_validate(optim), num_steps=1, device=CPU)


@pytest.mark.parametrize(
    "family,config,reason",
    [
        ("mamba", {"state_size": 4}, "attn_implementation='eager'"),  # a state carried along
        ("bloom", {"n_layer": 2, "n_head": 4}, "attn_implementation='eager'"),  # ALiBi
        ("falcon", {"alibi": True}, "hidden states that differ|from its attention"),  # ALiBi beside rotary positions
        ("qwen3_next", {"num_experts": 2, "num_experts_per_tok": 1, "linear_num_value_heads": 4,
                        "linear_num_key_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
                        "layer_types": ["linear_attention", "full_attention"]}, "a layer of linear_attention"),
    ],
)  # fmt: skip
def test_models_that_cannot_take_the_mask_keep_their_rows(family: str, config: dict[str, object], reason: str) -> None:
    model = other(family, **config)
    before = model.config._attn_implementation
    with pytest.warns(UserWarning, match=f"shared prefixes be computed once, got .*({reason})"):
        trainer = learner(model)
    assert model.config._attn_implementation == before
    rows = random_rows(Random(0))
    assert all(batch.pack is None for batch in trainer.micro_batches(rows, range(len(rows))))


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_positions_along_the_pack_are_found_out_however_small_the_states(size: float) -> None:
    model = build()
    body = model.get_decoder()
    body.register_forward_pre_hook(lambda _, args, given: (args, given | {"position_ids": None}), with_kwargs=True)
    with torch.no_grad():
        body.norm.weight *= size
    with pytest.warns(UserWarning, match=r"got hidden states that differ by 0\.11 "):
        assert not can_pack(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "dtype, drift, packs",
    [
        (torch.float32, 9e-5, True),
        (torch.float32, 1.1e-4, False),
        # 16 times the distance from 1 to the next number of bfloat16, 1/128, is 0.125.
        (torch.bfloat16, 0.0625, True),
        (torch.bfloat16, 0.25, False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*hidden states that differ by")
def test_what_may_be_rounding_is_no_difference(dtype: torch.dtype, drift: float, packs: bool) -> None:
    model, runs = build(dtype=dtype), itertools.count()

    def grow(module: object, arguments: object, found: BaseModelOutputWithPast) -> None:
        if next(runs) == 3:  # three rows alone, then the pack
            found["last_hidden_state"] = found["last_hidden_state"] * (1 + drift)

    model.get_decoder().register_forward_hook(grow)
    assert can_pack(model) is packs
    assert next(runs) == 4


def test_the_rows_of_the_proof_branch_twice() -> None:
    # (0 1 2 3 1 2), (0 1 2 3 4 0) and (0 1 3 ...): four tokens in common, then two.
    assert build_trie(_PROBE, range(3)).shared == (0, 4, 2)


def test_eager_attention_keeps_its_rows() -> None:
    model = build()
    model.set_attn_implementation("eager")
    with pytest.warns(UserWarning, match="got attn_implementation='eager'"):
        assert not can_pack(model)


def test_packing_can_be_switched_off_without_a_word() -> None:
    model = other("mamba", state_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = learner(model, packing=False)
    rows = random_rows(Random(0))
    assert all(batch.pack is None for batch in trainer.micro_batches(rows, range(len(rows))))


def test_a_model_that_packs_computes_rows_as_before() -> None:
    model, ids = build(), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    present = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    before = model(input_ids=ids, attention_mask=present).logits
    assert can_pack(model)
    assert can_pack(model)  # asked once
    assert torch.equal(model(input_ids=ids, attention_mask=present).logits, before)
    cache = model(input_ids=ids[:1, :3], use_cache=True).past_key_values
    last = model(input_ids=ids[:1, 3:], past_key_values=cache).logits
    torch.testing.assert_close(last, before[:1, 3:])


def test_a_saved_model_knows_nothing_of_packs(tmp_path: Path) -> None:
    model = build(dtype=torch.float32)
    assert can_pack(model)
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "phi", "granite", "cohere2", "gpt_neox", "olmo2"])
def test_common_families_pack(family: str) -> None:
    assert can_pack(other(family))


def test_bfloat16_packs() -> None:
    assert can_pack(build(dtype=torch.bfloat16))


def test_a_row_beyond_the_limit_is_a_pack_of_its_own() -> None:
    """Nothing is cut off and nothing is refused, as with padded rows."""
    rows = random_rows(Random(1))
    long = dataclasses.replace(rows[0], **{name: getattr(rows[0], name) * 9 for name in PER_TOKEN})
    batches = learner(build(), micro_batch_tokens=8).micro_batches([long, *rows], range(9))
    assert sorted(row for batch in batches for row in batch.rows) == list(range(9))
    assert max(batch.num_tokens for batch in batches) == len(long)
