"""What is compared with, and skipped where it is not installed."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.peers.trl_side import COMPLETION, PROMPT, ROWS, VOCAB, Batch


def _verl(module: str) -> Any:  # verl ships no types
    """Import a module of verl, which brings Ray and warns about what the machine lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("verl", reason="verl is not installed: see constraints/peers.txt")
        return import_module(module)


@pytest.fixture(scope="session")
def core_algos() -> Any:  # verl ships no types
    return _verl("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="session")
def rollout_correction() -> Any:  # as above
    return _verl("verl.trainer.ppo.rollout_corr_helper")


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, COMPLETION, generator=generator)

    lengths = torch.tensor([[6], [4], [2], [5]])
    completion_mask = (torch.arange(COMPLETION)[None] < lengths).long()
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[0, 2:4] = 0
    tool_mask[3, 1] = 0
    return Batch(
        prompt_ids=torch.randint(3, VOCAB, (ROWS, PROMPT), generator=generator),
        prompt_mask=(torch.arange(PROMPT)[None] >= torch.tensor([[0], [2], [1], [0]])).long(),
        completion_ids=torch.randint(3, VOCAB, (ROWS, COMPLETION), generator=generator),
        completion_mask=completion_mask,
        tool_mask=tool_mask,
        advantages=torch.tensor([1.2, -0.7, -1.1, 2.6]),
        old_logprobs=noise(0.4),  # completed in `off_policy`
        reference_logprobs=noise(0.3),
    )


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    """Return a tiny model that lies in a directory, from which TRL loads its reference copy."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    loaded: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    return loaded


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {f"t{i}": i for i in range(VOCAB)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")),
        pad_token="t0",
        eos_token="t1",
        bos_token="t2",
    )
