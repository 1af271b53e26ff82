"""The forward pass of one model over rows, always in the same mode, precision and micro-batches.

Equal rows give equal numbers, whoever asks for them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow, packed_batches, padded_batches
from envgym.trainer.learner.compiled import CompiledLayers
from envgym.trainer.learner.logprobs import TokenHiddenStates, TokenLogprobs, token_hidden_states
from envgym.trainer.learner.packing.support import can_pack, packed_token_hidden_states
from envgym.trainer.learner.settings import OptimSettings


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
        self._compiled: CompiledLayers | None = None

    def compile_layers(self) -> None:
        """Run the model's layers compiled from now on. Raises: InvalidInput: there is no compiler."""
        self._compiled = CompiledLayers(self.model, self.device)

    def layers(self) -> AbstractContextManager[None]:
        """Have the layers that are run in their places, for a forward pass and its backward pass."""
        return nullcontext() if self._compiled is None else self._compiled.in_place()

    def micro_batches(self, rows: Sequence[TrainRow], indices: Sequence[int]) -> list[MicroBatch]:
        """Deal the chosen rows into micro-batches: with each shared prefix once where the model can, else padded."""
        return self._make_batches(rows, indices, self._max_tokens, self.device)

    def hidden_states(self, batch: MicroBatch, model: nn.Module | None = None) -> TokenHiddenStates:
        """Run the body of the model, or of another of its architecture; call it inside `mode`."""
        model = self.model if model is None else model
        if self._compiled is not None and not torch.is_grad_enabled():
            with torch.enable_grad():  # the same compiled code as for the gradient, and so the same numbers
                states = self._hidden_states(batch, model)
            return replace(states, hidden_SD=states.hidden_SD.detach())
        return self._hidden_states(batch, model)

    def _hidden_states(self, batch: MicroBatch, model: nn.Module) -> TokenHiddenStates:
        if batch.pack is not None:
            return packed_token_hidden_states(model, batch.pack, loss_mask_BT=batch.scored_mask_BT)
        return token_hidden_states(
            model,
            input_ids_BT=batch.input_ids_BT,
            attention_mask_BT=batch.attention_mask_BT,
            scored_S=batch.scored_S,
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
                output_NT[batch.row_slice] += head(self.hidden_states(batch, model))  # a silent row adds 0
        return self._of_all(output_NT)

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
        *,
        with_states: bool = False,
    ) -> TokenLogprobs:
        """Return log-probs and entropies of the scored tokens of all rows, without gradient, nats; 0 elsewhere.

        With them, where they are asked for, the rows' hidden states.
        """
        shape = (len(rows), max(map(len, rows)))
        logprobs_NT, entropies_NT = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        states_ND: Float[Tensor, "N D"] | None = None
        for batch in batches:
            before = batch.state_mask_BT if with_states else None
            with self.mode(), torch.no_grad():
                states = self.hidden_states(batch)
                scored = states.logprobs(temperature=temperature, with_entropy=True, states_before=before)
            assert scored.entropies_BT is not None, "asked for above"
            logprobs_NT[batch.row_slice] += scored.logprobs_BT
            entropies_NT[batch.row_slice] += scored.entropies_BT.to(self.dtype)
            if scored.states_BD is not None:
                if states_ND is None:
                    states_ND = scored.states_BD.new_zeros(len(rows), scored.states_BD.shape[1])
                states_ND[batch.rows_B] += scored.states_BD
        return TokenLogprobs(
            self._of_all(logprobs_NT),
            self._of_all(entropies_NT),
            None if states_ND is None else self._of_all(states_ND),
        )

    def _of_all(self, numbers: Tensor) -> Tensor:
        """Return numbers of all rows, given those of the micro-batches that were computed here, and 0 elsewhere."""
        return numbers

    @contextmanager
    def mode(self) -> Iterator[None]:
        """Set mode and precision; train mode only for gradient checkpointing, as dropout stays off."""
        cast = nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)
        was_training = self.model.training
        self.model.train(bool(getattr(self.model, "is_gradient_checkpointing", False)))
        try:
            with cast, self.layers():
                yield
        finally:
            self.model.train(was_training)
