"""A causal language model with a slot cache: prefill some rows, or continue all of them by one token.

Positions and masks are made here, by the row, so rows of any lengths lie side by side.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from envgym.agents.policies.engine.cache import (
    SlotCache,
    as_additive,
    attention_mask,
    configs_of,
    grouped,
)
from envgym.agents.policies.engine.decode_graphs import CudaRecorder, DecodeGraphs, DecodeSteps, Recorder
from envgym.agents.policies.engine.llama_forward import Forward, LlamaForward, find_difference, llama_forward
from envgym.agents.policies.engine.packed_linears import PackedLinears
from envgym.errors import InvalidInput

PREFILL_TOKENS = 8192
"""Most tokens of one forward pass, padding included; more are computed in several."""
_PADDING = 16
"""A pass holds rows of at most twice its fewest tokens and this many more."""
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_log = logging.getLogger(__name__)


RECORDERS: Mapping[str, Callable[[torch.device], Recorder]] = {"cuda": CudaRecorder}


class CachedModel:
    """A transformers model (or a PEFT model around one) and the cache of the rows it is continuing."""

    def __init__(
        self,
        module: nn.Module,
        *,
        autocast: torch.dtype | None = None,
        recorders: Mapping[str, Callable[[torch.device], Recorder]] = RECORDERS,
    ) -> None:
        """Read from the configuration what masks the model needs.

        Args:
            module: the model.
            autocast: see `TransformersPolicy`.
            recorders: what records decoding steps, by type of device; where there is none, they run call by call.

        Raises: InvalidInput: the model has layers without a key-value cache (linear attention, state space).
        """
        self.module = module
        self._autocast = autocast
        self._configs = configs_of(module)
        self._additive = any(config._attn_implementation == "eager" for config in self._configs)
        config = module.config.get_text_config()  # type: ignore[union-attr, operator]  # nn.Module types attributes as tensors
        self._windows = _windows(config)
        self._run: Forward = self._run_modules
        self._candidate = None if self._additive else llama_forward(module, list(self._windows), autocast=autocast)
        """What is to be proved before it replaces the model's own forward pass."""
        self._unproved = "its attention is eager" if self._additive else "its modules are not those of a Llama"
        """Why the model's own forward pass runs, where it does."""
        self.vocabulary: int = config.vocab_size
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        self.cache = SlotCache(autocast)
        self._packed = PackedLinears(module, autocast=autocast)
        self._recorders = recorders
        self._graphs: DecodeGraphs | None = None
        self._addresses: tuple[int, ...] = ()
        """Of the weights that the recordings read."""
        self._failure: str | None = None
        """Why decoding steps cannot be recorded, although the device could."""
        self.steps = DecodeSteps()

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def forget(self) -> None:
        """Free the cache, the recordings and the copies of weights."""
        self.cache, self._graphs = SlotCache(self._autocast), None
        self.forget_weights()

    def forget_weights(self) -> None:
        """Free the copies of weights, as these are new."""
        self._packed.forget()
        if isinstance(self._run, LlamaForward):
            self._run.forget()
        if self._graphs is not None and self._addresses != self._weight_addresses():
            self._graphs = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Put the model in the state that sampling needs, and back: eval mode, grouped attention, no gradients.

        Where it helps, matrices are multiplied by copies laid out for that.
        """
        was_training = self.module.training
        if was_training:
            self.module.eval()
        is_cast = self._autocast is not None
        try:
            with (
                grouped(self._configs),
                torch.inference_mode(),
                torch.autocast(self.device.type, dtype=self._autocast, enabled=is_cast),
            ):
                if self._candidate is not None:
                    self._choose(self._candidate)
                with self._packed.serving():
                    yield
        finally:
            if was_training:
                self.module.train()

    def prefill(self, contexts: Sequence[tuple[int, ...]], starts: Sequence[int], first_row: int) -> None:
        """Compute keys and values of `contexts` from `starts` on, in the rows from `first_row` on; room is reserved.

        Contexts that come in the order of the tokens to compute need the least padding.
        """
        counts = [len(context) - start for context, start in zip(contexts, starts, strict=True)]
        row = 0
        while row < len(counts):
            size, shortest, longest = 1, counts[row], counts[row]
            while row + size < len(counts):
                shortest, longest = min(shortest, counts[row + size]), max(longest, counts[row + size])
                if longest * (size + 1) > PREFILL_TOKENS or longest > 2 * shortest + _PADDING:
                    break
                size += 1
            rows = slice(row, row + size)
            for _ in self.passes(contexts[rows], starts[rows], first_row + row, PREFILL_TOKENS, keep_all=False):
                pass
            row += size

    def passes(
        self,
        rows: Sequence[tuple[int, ...]],
        starts: Sequence[int],
        first_row: int,
        max_tokens: int,
        *,
        keep_all: bool,
    ) -> Iterator[tuple[int, Tensor]]:
        """Run `rows` from `starts` on, at most `max_tokens` a pass; yield (tokens before, logits) of each pass.

        The logits are those of all the pass's tokens, or none.
        """
        num_rows, device = len(rows), self.device
        width = max(len(row) - start for row, start in zip(rows, starts, strict=True))
        ids = torch.zeros((num_rows, width), dtype=torch.int64)
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[place, : len(row) - start] = torch.tensor(row[start:], dtype=torch.int64)
        ids = ids.to(device)
        is_even = len(set(starts)) == 1
        begins = torch.tensor(starts[:1] if is_even else starts, device=device)[:, None]
        ends = torch.tensor([len(row) for row in rows], device=device)[:, None]
        chunk = max(max_tokens // num_rows, 1)
        for begin in range(0, width, chunk):
            end = min(begin + chunk, width)
            positions = begins + torch.arange(begin, end, device=device)
            if is_even:
                self.cache.writing(first_row, num_rows, starts[0] + end)
            else:
                positions = positions.minimum(ends)  # padding goes where the row's next token will
                self.cache.writing(first_row, num_rows, int(positions.max()) + 1, positions)
            yield begin, self._forward(ids[:, begin:end], positions, keep=end - begin if keep_all else 0)

    def decode(self, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
        """Append a token to each of the first rows; return [B, V] float32 logits of what follows.

        They hold until the next call.

        Args:
            tokens: [B].
            positions: [B] how long each row was.
            width: columns in use after this, of the longest row.
        """
        recorder = self._recorders.get(tokens.device.type)
        if recorder is None:
            return self._decode(tokens, positions, width)
        self.steps.count += 1
        if reason := self._failure or self._unrecordable():
            self._warn(reason)
            return self._decode(tokens, positions, width)
        if self._graphs is None:
            self._graphs = DecodeGraphs(
                self._decode, self.cache, vocabulary=self.vocabulary, recorder=recorder(tokens.device)
            )
            self._addresses = self._weight_addresses()
        before = self._graphs.num_recordings
        try:
            logits = self._graphs.decode(tokens, positions, width)
        except RuntimeError as error:
            self._failure, self._graphs = f"{type(error).__name__}: {error}", None
            self._warn(self._failure)
            return self._decode(tokens, positions, width)
        self.steps.num_recorded += 1
        self.steps.num_recordings += self._graphs.num_recordings - before
        return logits

    def _unrecordable(self) -> str | None:
        """Return why the steps of this model cannot be recorded; None: they can."""
        if self._autocast is not None:
            return "autocast casts weights in every step, and what it has cast cannot be recorded"
        if not isinstance(self._run, LlamaForward):  # other forward passes may wait for the device
            return f"the forward pass of {type(self.module).__name__} is that of its modules, as {self._unproved}"
        return None

    def _warn(self, reason: str) -> None:
        """Note why decoding steps run call by call; log it once, except for autocast, the default on a GPU."""
        if self.steps.reason is not None:
            return
        self.steps.reason = reason
        if self._autocast is None:
            _log.warning("decoding steps are not recorded and run call by call, which is slower: %s", reason)

    def _decode(self, tokens: Tensor, positions: Tensor, width: int) -> Tensor:
        self.cache.writing(0, len(tokens), width, positions[:, None])
        return self._forward(tokens[:, None], positions[:, None], keep=1)[:, -1].float()

    def _weight_addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in chain(self.module.parameters(), self.module.buffers()))

    def _forward(self, ids: Tensor, positions: Tensor, *, keep: int) -> Tensor:
        """Return [B, keep, V] the logits of the last `keep` tokens of `ids` [B, T], at `positions` [B or 1, T]."""
        width = self.cache.layout.width
        masks = {kind: attention_mask(positions, width, window) for kind, window in self._windows.items()}
        return self._run(ids, positions, masks, self.cache, keep=keep)

    def _run_modules(
        self, ids: Tensor, positions: Tensor, masks: Mapping[str, Tensor], cache: SlotCache, *, keep: int
    ) -> Tensor:
        if self._additive:
            dtype = next(self.module.parameters()).dtype
            masks = {kind: as_additive(mask, dtype) for kind, mask in masks.items()}
        output = self.module(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions.expand(len(ids), -1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=max(keep, 1),  # of 0, transformers would return all
        )
        logits: Tensor = output.logits
        return logits[:, logits.shape[1] - keep :]

    def _choose(self, candidate: LlamaForward) -> None:
        """Use the candidate from now on if it computes what the model's modules compute."""
        self._candidate = None
        difference = self._difference(candidate)
        if difference is not None:
            self._unproved = f"the short form of it differs: {difference}"
            return
        self._run = candidate
        self._packed = PackedLinears(self.module, autocast=self._autocast, leave_out=candidate.linears())

    def _difference(self, candidate: LlamaForward) -> str | None:
        """Return how the candidate differs from the model's modules; None: it computes the same."""
        if self._autocast is not None:  # what is told by that is less than without it
            plain = llama_forward(self.module, list(self._windows))
            with torch.autocast(self.device.type, enabled=False):
                if plain is None:
                    return "it needs autocast"
                if difference := find_difference(self._run_modules, plain, self._windows, self.device):
                    return difference
        return find_difference(self._run_modules, candidate, self._windows, self.device, self._autocast)


def _windows(config: Any) -> dict[str, int | None]:  # a transformers config
    """Return the window of each kind of attention layer; None: no bound. Raises: InvalidInput: one without a cache."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    if unknown := sorted(kinds - _KNOWN_LAYERS):
        do = "sample from this model with another engine"
        raise InvalidInput.of("attention layers", "be full or sliding", unknown[0], where=type(config).__name__, do=do)
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
