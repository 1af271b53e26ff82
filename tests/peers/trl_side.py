"""A batch in TRL's layout, a tiny model that scores it in ours, and what it means that two losses agree."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.support.logprobs import token_logprobs

VOCAB, PROMPT, COMPLETION, ROWS = 32, 4, 6, 4
TEMPERATURE = 0.8
TOLERANCE = 1e-5  # relative, both sides in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
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


def score(model: LlamaForCausalLM, batch: Batch, *, temperature: float = TEMPERATURE) -> tuple[Tensor, Tensor]:
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
        temperature=temperature,
        chunk_size=5,
    ).logprobs_BT
    return logprobs.gather(1, positions), trained


def off_policy(model: LlamaForCausalLM, batch: Batch) -> Batch:
    """Move old and reference log-probabilities around the model's, far enough for some tokens to be clipped."""
    logprobs = score(model, batch)[0].detach()
    moved = {
        "old_logprobs": logprobs + batch.old_logprobs,
        "reference_logprobs": logprobs + batch.reference_logprobs,
    }
    return Batch(**{name: getattr(batch, name) for name in Batch.__slots__} | moved)


def gradients_of(model: LlamaForCausalLM) -> dict[str, Tensor]:
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    return gradients


def assert_agreement(model: LlamaForCausalLM, ours: Tensor, theirs: float, their_gradients: dict[str, Tensor]) -> None:
    """Assert equal losses, and equal gradients of every parameter, to the relative tolerance."""
    assert ours.item() == pytest.approx(theirs, rel=TOLERANCE)
    model.zero_grad()
    ours.backward()
    our_gradients = gradients_of(model)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        assert gradient.norm().item() > 0, name
        assert (our_gradients[name] - gradient).norm().item() <= TOLERANCE * gradient.norm().item(), name
