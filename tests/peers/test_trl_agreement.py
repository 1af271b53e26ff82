"""Our losses and parameter gradients equal those of TRL's own `GRPOTrainer._compute_loss` on one fixed batch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from envgym.trainer.methods.losses import (
    Aggregation,
    LossBatch,
    PpoClip,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMean,
    kl_to_reference,
)
from envgym.trainer.methods.losses.kl import k3
from tests.support.denominators import denominator_of
from tests.support.logprobs import token_logprobs
from tests.support.losses import stats_of

pytestmark = pytest.mark.peers

VOCAB, PROMPT, COMPLETION, ROWS = 32, 4, 6, 4
TEMPERATURE, CLIP_LOW, CLIP_HIGH = 0.8, 0.2, 0.28
TOLERANCE = 1e-5  # relative, both sides in float32

AGGREGATIONS: dict[str, Aggregation] = {
    "grpo": SeqMeanTokenMean(),
    "dr_grpo": SeqMeanTokenSumNorm(max_tokens=COMPLETION),
    "dapo": TokenMean(),
    "bnpo": TokenMean(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One batch in TRL's layout: prompts padded on the left, completions on the right."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    tool_mask: Tensor
    """0 on completion tokens that a tool wrote."""
    advantages: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor

    def part(self, rows: slice, *, beta: float) -> dict[str, Tensor]:
        """Return some rows as the inputs of `_compute_loss`."""
        inputs = {
            "prompt_ids": self.prompt_ids[rows],
            "prompt_mask": self.prompt_mask[rows],
            "completion_ids": self.completion_ids[rows],
            "completion_mask": self.completion_mask[rows],
            "tool_mask": self.tool_mask[rows],
            "advantages": self.advantages[rows],
            "old_per_token_logps": self.old_logprobs[rows],
            "num_items_in_batch": (self.completion_mask * self.tool_mask).sum(),
        }
        return inputs | ({"ref_per_token_logps": self.reference_logprobs[rows]} if beta else {})


@pytest.fixture
def batch() -> _Batch:
    generator = torch.Generator().manual_seed(0)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, COMPLETION, generator=generator)

    lengths = torch.tensor([[6], [4], [2], [5]])
    completion_mask = (torch.arange(COMPLETION)[None] < lengths).long()
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[0, 2:4] = 0
    tool_mask[3, 1] = 0
    return _Batch(
        prompt_ids=torch.randint(3, VOCAB, (ROWS, PROMPT), generator=generator),
        prompt_mask=(torch.arange(PROMPT)[None] >= torch.tensor([[0], [2], [1], [0]])).long(),
        completion_ids=torch.randint(3, VOCAB, (ROWS, COMPLETION), generator=generator),
        completion_mask=completion_mask,
        tool_mask=tool_mask,
        advantages=torch.tensor([1.2, -0.7, -1.1, 2.6]),
        old_logprobs=noise(0.4),  # completed in `_off_policy`
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


BuildTrainer = Callable[..., Any]  # TRL ships no types


@pytest.fixture
def build_trainer(model: LlamaForCausalLM, tmp_path: Path) -> BuildTrainer:
    """Return a function that makes a real GRPOTrainer around the model; skip where TRL is not installed."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
    datasets = pytest.importorskip("datasets")
    vocabulary = {f"t{i}": i for i in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")),
        pad_token="t0",
        eos_token="t1",
        bos_token="t2",
    )

    def build(loss_type: str, *, beta: float = 0.0, micro_batches: int = 1) -> Any:  # TRL ships no types
        config = trl.GRPOConfig(
            output_dir=str(tmp_path / "run"),
            loss_type=loss_type,
            beta=beta,
            use_bias_correction_kl=False,  # the plain k3 term
            epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH,
            temperature=TEMPERATURE,
            num_generations=ROWS,
            per_device_train_batch_size=ROWS // micro_batches,
            gradient_accumulation_steps=micro_batches,
            max_completion_length=COMPLETION,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["t3 t4"] * ROWS}),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = micro_batches
        trainer.model.train()
        return trainer

    return build


def _score(model: LlamaForCausalLM, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Return our log-probabilities and loss mask over completions, from rows padded on the right."""
    rows = [
        torch.cat([prompt[mask.bool()], completion])
        for prompt, mask, completion in zip(batch.prompt_ids, batch.prompt_mask, batch.completion_ids, strict=True)
    ]
    starts = batch.prompt_mask.sum(dim=-1)
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    positions = starts[:, None] + torch.arange(COMPLETION)[None]
    lengths = starts + batch.completion_mask.sum(dim=-1)
    attention_mask = torch.arange(input_ids.shape[1])[None] < lengths[:, None]
    trained = (batch.completion_mask * batch.tool_mask).bool()
    loss_mask = torch.zeros_like(attention_mask).scatter(1, positions, trained)
    logprobs = token_logprobs(
        model,
        input_ids_BT=input_ids,
        attention_mask_BT=attention_mask,
        loss_mask_BT=loss_mask,
        temperature=TEMPERATURE,
        chunk_size=5,
    ).logprobs_BT
    return logprobs.gather(1, positions), trained


def _off_policy(model: LlamaForCausalLM, batch: _Batch) -> _Batch:
    """Move old and reference log-probabilities around the model's, far enough for some tokens to be clipped."""
    logprobs = _score(model, batch)[0].detach()
    moved = {
        "old_logprobs": logprobs + batch.old_logprobs,
        "reference_logprobs": logprobs + batch.reference_logprobs,
    }
    return _Batch(**{name: getattr(batch, name) for name in _Batch.__slots__} | moved)


def _ours(model: LlamaForCausalLM, batch: _Batch, loss_type: str, *, beta: float) -> Tensor:
    logprobs, loss_mask = _score(model, batch)
    result = PpoClip(clip_low=CLIP_LOW, clip_high=CLIP_HIGH)(
        LossBatch(
            logprobs_BT=logprobs,
            old_logprobs_BT=batch.old_logprobs,
            advantages_BT=batch.advantages[:, None].expand_as(logprobs),
            loss_mask_BT=loss_mask,
        )
    )
    # The batch must tell the losses apart: tokens clipped on both sides, others not.
    stats = stats_of(result)
    assert stats.clipped_low.item() > 0
    assert stats.clipped_high.item() > 0
    assert stats.clipped_low.item() + stats.clipped_high.item() < stats.tokens.item()
    losses = result.losses_BT
    if beta:
        losses = losses + beta * kl_to_reference(logprobs, batch.reference_logprobs, loss_mask, estimator=k3)
    denominator = denominator_of(loss_mask)
    return AGGREGATIONS[loss_type](losses, loss_mask, denominator=denominator)


def _gradients(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """Take the gradients out of the model."""
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    return gradients


def _assert_agreement(model: LlamaForCausalLM, ours: Tensor, theirs: float, their_gradients: dict[str, Tensor]) -> None:
    """Assert equal losses, and equal gradients of every parameter, to the relative tolerance."""
    assert ours.item() == pytest.approx(theirs, rel=TOLERANCE)
    model.zero_grad()
    ours.backward()
    our_gradients = _gradients(model)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        assert gradient.norm().item() > 0, name
        assert (our_gradients[name] - gradient).norm().item() <= TOLERANCE * gradient.norm().item(), name


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", sorted(AGGREGATIONS))
def test_loss_and_gradients_equal_trl_s(
    build_trainer: BuildTrainer, model: LlamaForCausalLM, batch: _Batch, loss_type: str, beta: float
) -> None:
    trainer = build_trainer(loss_type, beta=beta)
    batch = _off_policy(model, batch)
    theirs = trainer._compute_loss(trainer.model, batch.part(slice(None), beta=beta))
    theirs.backward()
    their_gradients = _gradients(model)
    _assert_agreement(model, _ours(model, batch, loss_type, beta=beta), theirs.item(), their_gradients)


# Not "bnpo": TRL divides it by the tokens of each micro-batch, so that its accumulation is another objective.
@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo", "grpo"])
def test_our_batch_equals_trl_s_accumulated_micro_batches(
    build_trainer: BuildTrainer, model: LlamaForCausalLM, batch: _Batch, loss_type: str
) -> None:
    trainer = build_trainer(loss_type, micro_batches=2)
    batch = _off_policy(model, batch)
    theirs = 0.0
    for rows in (slice(0, 2), slice(2, 4)):
        loss = trainer._compute_loss(trainer.model, batch.part(rows, beta=0.0))
        loss.backward()
        theirs += loss.item()
    their_gradients = _gradients(model)
    _assert_agreement(model, _ours(model, batch, loss_type, beta=0.0), theirs, their_gradients)
