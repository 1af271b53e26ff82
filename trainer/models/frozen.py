"""Frozen models in this process: one from a directory, and the policy as the run began."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from envgym.agents.models.loading import load, load_tokenizer, resolve_model
from envgym.agents.policies.backends import autocast_dtype
from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.batch.rows import scored_row
from envgym.trainer.learner.checkpoint import OpenReference, keep_reference, open_reference
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.methods.annotators.base import Model
from envgym.trainer.models.base import ModelContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class FrozenModel(Model):
    """Says how probable tokens are; `open` gives its module, for scores of whole rows."""

    open: OpenReference
    """Set by `begin`."""

    def __init__(self, context: ModelContext) -> None:
        """Share the run's device, precision and micro-batches."""
        self._context = context
        self._one_at_a_time = threading.Lock()

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return await asyncio.to_thread(self._compute_logprobs, token_ids)

    def _compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        rows = [scored_row(ids, first=1) for ids in token_ids]
        with self._one_at_a_time, self._hold(), self.open() as module:
            forward = self.forward_pass(module)
            logprobs_NT = forward.logprobs(rows, forward.micro_batches(rows, range(len(rows))), temperature=1.0)
        return [tuple(values[: len(row)]) for row, values in zip(rows, logprobs_NT.tolist(), strict=True)]

    def forward_pass(self, module: nn.Module) -> ForwardPass:
        """Return the forward pass of the module, in packs where it can; `module` is the one that `open` returns."""
        autocast = autocast_dtype(self._context.model_settings)
        device = next(module.parameters()).device  # of the policy's own module, where only servers sample from it: CPU
        return ForwardPass(module, self._context.optim, device=device, autocast=autocast)

    def _hold(self) -> AbstractContextManager[object]:
        """Keep others from the module while it computes. Default: it is no other's."""
        return nullcontext()


class LocalModel(FrozenModel):
    """A model from a Hugging Face directory, with the policy's tokenizer."""

    def __init__(self, context: ModelContext, *, path: str, dtype: str = "float32") -> None:
        """Name the model.

        Args:
            context: of the run.
            path: as `model.name`: `tiny`, `smollm2`, a directory, or a hub name.
            dtype: of its weights.
        """
        super().__init__(context)
        self._path, self._dtype = path, dtype

    def check(self) -> None:
        """Load it. Raises: InvalidInput: there is none, or its tokenizer is not the policy's."""
        context = self._context
        source = resolve_model(self._path, tiny=context.model_settings.tiny)
        check_same_tokenizer(load_tokenizer(source), context.tokenizer, where=f"model {self._path}")
        tiny = context.model_settings.tiny
        module = load(self._path, dtype=self._dtype, device=str(context.device), tiny=tiny).model
        self.open = lambda: nullcontext(module)


class SnapshotModel(FrozenModel):
    """The policy as the run began, after its warm start: the reference of a KL term."""

    def __init__(self, context: ModelContext) -> None:
        """Before the run begins, it is the policy itself."""
        super().__init__(context)
        self.open = lambda: nullcontext(context.model)
        self._shares_module = True

    def begin(self, folder: Path) -> None:
        """Keep the policy's weights in `folder`, or open those that an earlier part of the run has kept there."""
        self._folder = folder
        keep_reference(self._context.model, folder)
        self.open = open_reference(self._context.model, folder, self._context.device)
        self._shares_module = hasattr(self._context.model, "peft_config")

    def reset(self, folder: Path) -> None:
        """Keep the policy as it is now in another folder, and forget the one that was kept before."""
        before = self._folder
        self.begin(folder)
        if hasattr(self._context.model, "peft_config"):
            self._context.model.delete_adapter(before.name)

    def _hold(self) -> AbstractContextManager[object]:
        """Hold sampling off where the two share a module: before the run begins, or where adapters tell them apart."""
        return self._context.policy.pause() if self._shares_module else nullcontext()


def check_packs(model: FrozenModel, policy: ForwardPass, *, where: str) -> None:
    """Refuse a model that would misread the policy's packs. Raises: SettingsError: it cannot compute them."""
    with model.open() as module:
        if policy.packs and not model.forward_pass(module).packs:
            do = "set optim.packing=false, or name a model of the policy's family"
            must, got = "compute packs as the policy does", type(module).__name__
            raise SettingsError.of("model", must, got, where=where, do=do)


def check_same_tokenizer(theirs: "PreTrainedTokenizerBase", ours: "PreTrainedTokenizerBase", *, where: str) -> None:
    """Refuse a tokenizer that gives other tokens than the policy's. Raises: InvalidInput."""
    mine, its = ours.get_vocab(), theirs.get_vocab()
    if mine != its:
        got = f"{len(mine.items() & its.items())} of {len(mine)} tokens alike"
        do = "name a model of the policy's family, or ask it in words through an endpoint"
        raise InvalidInput.of("tokenizer", "be that of the policy", got, where=where, do=do)
