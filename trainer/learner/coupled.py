"""The gradient of losses that couple rows, without holding the rows together in memory."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from envgym.trainer.batch.rows import MicroBatch, TrainRow, pad
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.logprobs import TokenLogprobs


class CoupledGradient(NamedTuple):
    """The gradient of a loss by the log-probs and entropies of all rows; 0 at rows that it was not given."""

    by_logprobs_NT: Float[Tensor, "N T"]
    by_entropies_NT: Float[Tensor, "N T"]

    def of(self, batch: MicroBatch, scored: TokenLogprobs) -> Float[Tensor, ""]:
        """Return a number with the gradient that a micro-batch's rows add."""
        assert scored.entropies_BT is not None, "the caller computes entropies"
        by_logprobs_BT = self.by_logprobs_NT[batch.row_slice] * scored.logprobs_BT
        return (by_logprobs_BT + self.by_entropies_NT[batch.row_slice] * scored.entropies_BT).sum()


def coupled_gradient(
    forward: ForwardPass,
    rows: Sequence[TrainRow],
    chosen: Sequence[int],
    loss_fn: Callable[[MicroBatch, TokenLogprobs], Float[Tensor, ""]],
    *,
    temperature: float,
) -> CoupledGradient:
    """Differentiate a loss by the log-probs and entropies of the chosen rows, which it is given all at once.

    The weights do not change while an update accumulates its gradient. So the chain rule through these numbers,
    micro-batch by micro-batch, gives the gradient of all rows together. Source: 2101.06983 (gradient caching).

    Args:
        forward: of the model that learns.
        rows: of the train step.
        chosen: those of the update.
        loss_fn: returns the loss of the chosen rows in their order, with gradient by the numbers that it is given.
        temperature: that the rows were sampled at.
    """
    numbers = forward.token_logprobs(rows, forward.micro_batches(rows, chosen), temperature)
    whole = pad(rows, chosen, forward.device)
    leaves = [numbers_NT[whole.row_slice].requires_grad_() for numbers_NT in numbers]
    loss = loss_fn(whole, TokenLogprobs(*leaves))
    gradients: Sequence[Tensor | None] = (None, None)  # of a loss that had nothing to compare in these rows
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = CoupledGradient(*(torch.zeros_like(numbers_NT) for numbers_NT in numbers))
    for found_NT, gradient in zip(found, gradients, strict=True):
        if gradient is not None:
            found_NT[whole.row_slice] = gradient
    return found
