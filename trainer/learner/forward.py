"""The forward pass of one model over rows, always in the same mode, precision and micro-batches.

Equal rows give equal numbers, whoever asks for them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow, packed_batches, padded_batches
from envgym.trainer.learner.logprobs import TokenHiddenStates, token_hidden_states
from envgym.trainer.learner.packing.support import can_pack, packed_token_hidden_states
from envgym.trainer.sections import OptimSettings


class ForwardPass:
    """Computes a model's hidden states, and what heads compute from them, at the trained tokens of rows."""

    def __init__(
        self, model: nn.Module, optim: OptimSettings, *, device: torch.device, autocast: torch.dtype | None = None
    ) -> None:
        """Prepare the model for packs where it can.

        Args:
            model: a Hugging Face causal language model, plain or wrapped by peft.
            optim: how rows are dealt into micro-batches.
            device: where the model is.
            autocast: dtype of the matrix products; None = that of the weights.
        """
        self.model, self.device, self.autocast = model, device, autocast
        self.dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        """Dtype of what heads compute."""
        self._max_tokens = optim.micro_batch_tokens
        self.packs = optim.packing and can_pack(model)
        """Whether shared prefixes are computed once."""
        self._make_batches = packed_batches if self.packs else padded_batches

    def micro_batches(self, rows: Sequence[TrainRow], chosen: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self._make_batches(rows, chosen, self._max_tokens, self.device)

    def hidden_states(self, batch: MicroBatch, model: nn.Module | None = None) -> TokenHiddenStates:
        """Run the body of the model, or of another of its architecture; call it inside `mode`."""
        model = self.model if model is None else model
        if batch.pack is not None:
            return packed_token_hidden_states(model, batch.pack, loss_mask_BT=batch.scored_mask_BT)
        return token_hidden_states(
            model,
            input_ids_BT=batch.input_ids_BT,
            attention_mask_BT=batch.attention_mask_BT,
            loss_mask_BT=batch.scored_mask_BT,
        )

    def apply_head(
        self,
        rows: Sequence[TrainRow],
        batches: Sequence[MicroBatch],
        head: Callable[[TokenHiddenStates], Float[Tensor, "B T"]],
        model: nn.Module | None = None,
    ) -> Float[Tensor, "N T"]:
        """Return a head's output at the trained tokens of all rows, without gradient; 0 elsewhere."""
        output_NT = torch.zeros((len(rows), max(map(len, rows))), dtype=self.dtype, device=self.device)
        for batch in batches:
            # The model runs in the same mode and micro-batch as for the gradient, so that the first ratio is exactly 1.
            with self.mode(), torch.no_grad():
                output_NT[batch.row_slice] = head(self.hidden_states(batch, model))
        return output_NT

    def logprobs(
        self,
        rows: Sequence[TrainRow],
        batches: Sequence[MicroBatch],
        temperature: float,
        model: nn.Module | None = None,
    ) -> Float[Tensor, "N T"]:
        """Return the log-probs of the trained tokens of all rows, without gradient, nats; 0 elsewhere."""

        def head(states: TokenHiddenStates) -> Float[Tensor, "B T"]:
            return states.logprobs(temperature=temperature).logprobs_BT

        return self.apply_head(rows, batches, head, model)

    def token_logprobs(
        self,
        rows: Sequence[TrainRow],
        batches: Sequence[MicroBatch],
        temperature: float,
    ) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """Return (log-probs, entropies) of the scored tokens of all rows, without gradient, nats; 0 elsewhere."""
        entropies_NT = torch.zeros((len(rows), max(map(len, rows))), dtype=self.dtype, device=self.device)

        def head(states: TokenHiddenStates) -> Float[Tensor, "B T"]:
            scored = states.logprobs(temperature=temperature, with_entropy=True)
            entropies.append(scored.entropies_BT)
            return scored.logprobs_BT

        entropies: list[Float[Tensor, "B T"] | None] = []
        logprobs_NT = self.apply_head(rows, batches, head)
        for batch, entropies_BT in zip(batches, entropies, strict=True):
            assert entropies_BT is not None, "asked for above"
            entropies_NT[batch.row_slice] = entropies_BT.to(self.dtype)
        return logprobs_NT, entropies_NT

    @contextmanager
    def mode(self) -> Iterator[None]:
        """Set mode and precision; train mode only for gradient checkpointing, as dropout stays off."""
        cast = nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)
        was_training = self.model.training
        self.model.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))
        try:
            with cast:
                yield
        finally:
            self.model.train(was_training)
