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
    """The gradient of a loss by the log-probs, entropies and states of all rows; 0 at rows that it was not given."""

    by_logprobs_NT: Float[Tensor, "N T"]
    by_entropies_NT: Float[Tensor, "N T"]
    by_states_ND: Float[Tensor, "N D"] | None = None
    """None: the loss was given no states."""

    def of(self, batch: MicroBatch, scored: TokenLogprobs) -> Float[Tensor, ""]:
        """Return a number with the gradient that a micro-batch's rows add."""
        assert scored.entropies_BT is not None, "the caller computes entropies"
        by_logprobs_BT = self.by_logprobs_NT[batch.row_slice] * scored.logprobs_BT
        value = (by_logprobs_BT + self.by_entropies_NT[batch.row_slice] * scored.entropies_BT).sum()
        if self.by_states_ND is None:
            return value
        assert scored.states_BD is not None, "the caller computes states where the loss read them"
        return value + (self.by_states_ND[batch.rows_B] * scored.states_BD).sum()


def coupled_gradient(
    forward: ForwardPass,
    rows: Sequence[TrainRow],
    indices: Sequence[int],
    loss_fn: Callable[[MicroBatch, TokenLogprobs], Float[Tensor, ""]],
    *,
    temperature: float,
    with_states: bool,
) -> CoupledGradient:
    """Differentiate a loss by the log-probs, entropies and states of the chosen rows, which it is given all at once.

    The weights do not change while an update accumulates its gradient. So the chain rule through these numbers,
    micro-batch by micro-batch, gives the gradient of all rows together. Source: 2101.06983 (gradient caching).

    Args:
        forward: of the model that learns.
        rows: of the train step.
        indices: those of the update.
        loss_fn: returns the loss of the chosen rows in their order, with gradient by the numbers that it is given.
        temperature: that the rows were sampled at.
        with_states: whether the loss reads the rows' hidden states.
    """
    batches = forward.micro_batches(rows, indices)
    computed = forward.token_logprobs(rows, batches, temperature, with_states=with_states)
    numbers = [values for values in computed if values is not None]
    whole = pad(rows, indices, forward.device)
    places = (whole.row_slice, whole.row_slice, whole.rows_B)[: len(numbers)]
    leaves = [values[place].requires_grad_() for values, place in zip(numbers, places, strict=True)]
    loss = loss_fn(whole, TokenLogprobs(*leaves))
    all_gradients = [torch.zeros_like(values) for values in numbers]
    if loss.requires_grad:  # else it had nothing to compare in these rows
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        for of_all, place, gradient in zip(all_gradients, places, gradients, strict=True):
            if gradient is not None:
                of_all[place] = gradient
    return CoupledGradient(*all_gradients)
