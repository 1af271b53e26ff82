"""Log-probabilities and entropies of tokens from hidden states, chunk by chunk.

Full logits [tokens, vocabulary] are held neither in the forward nor in the backward pass: every chunk of tokens makes
its logits, reduces them to two numbers per token, and makes them again for the gradient. What is added to the memory
of the model is a few buffers of chunk_size x vocabulary, and the gradient of the head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from envgym.errors import InvalidInput
from envgym.trainer.learner._chunked import ChunkedLogprobsFunction, ChunkSettings
from envgym.trainer.learner.causal_lm import LmHead, at_least_float32, causal_lm, hidden_states, lm_head_of
from envgym.trainer.learner.rows_attention import padded_right

_CHUNK_SIZES = {"cpu": 256}
_CHUNK_SIZE = 1024
"""Tokens per chunk, on a CPU and elsewhere: enough to keep the product busy, and at a vocabulary of 128k 128 and
512 MiB of float32 logits. Each chunk is also added once to the gradient of the head, which on a GPU takes longer than
a chunk of 256 tokens needs for its products."""


class ChunkedLogprobs(NamedTuple):
    """What `chunked_logprobs` computes, in float32 (float64 for float64 inputs) and nats."""

    logprobs_T: Float[Tensor, " T"]
    """log p of each target under softmax(logits / temperature)."""
    entropies_T: Float[Tensor, " T"] | None
    """Entropy of that distribution; None unless asked for."""


class TokenLogprobs(NamedTuple):
    """What a pass computes of rows: at t the log-prob of token t given those before it; 0 where it was not scored."""

    logprobs_BT: Float[Tensor, "B T"]
    """log p of each token under softmax(logits / temperature), in nats."""
    entropies_BT: Float[Tensor, "B T"] | None
    """Entropy of the distribution that each token was drawn from, in nats; None unless asked for."""
    states_BD: Float[Tensor, "B D"] | None = None
    """Hidden state of each row, see `TokenHiddenStates.of_rows`; None unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHiddenStates:
    """One pass through a model's body: the hidden state that predicts each scored token, for any head to read.

    A token that several rows share may stand here once, so S is the number of distinct tokens.
    """

    hidden_SD: Float[Tensor, "S D"]
    """At the token before each scored one, with gradient."""
    targets_S: Int[Tensor, " S"]
    """The scored tokens."""
    to_rows: Callable[[Float[Tensor, " S"]], Float[Tensor, "B T"]]
    """Deals one number per scored token out to the rows, 0 elsewhere; differentiable."""
    head: LmHead
    """The model's own."""

    def logprobs(
        self,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        states_before: Bool[Tensor, "B T"] | None = None,
        chunk_size: int | None = None,
    ) -> TokenLogprobs:
        """Score the tokens; arguments as for `chunked_logprobs`, and those of `of_rows` where it is asked for."""
        result = chunked_logprobs(
            self.hidden_SD,
            self.head,
            self.targets_S,
            temperature=temperature,
            with_entropy=with_entropy,
            chunk_size=chunk_size,
        )
        entropies_BT = None if result.entropies_T is None else self.to_rows(result.entropies_T)
        states_BD = None if states_before is None else self.of_rows(states_before)
        return TokenLogprobs(self.to_rows(result.logprobs_T), entropies_BT, states_BD)

    def of_rows(self, mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        """Return the hidden state before each row's first token of a mask; 0 where the mask holds none.

        Args:
            mask_BT: a part of the scored tokens.
        """
        count, width = self.hidden_SD.shape
        # Which token stands where is dealt out as any number a token is; float64 counts exactly.
        numbers_BT = self.to_rows(torch.arange(count, dtype=torch.float64, device=self.hidden_SD.device)).long()
        if not count:
            return at_least_float32(self.hidden_SD.new_zeros(len(mask_BT), width))
        first_B = numbers_BT.gather(1, mask_BT.int().argmax(dim=-1, keepdim=True))[:, 0]
        states_BD = self.hidden_SD.index_select(0, first_B)
        return at_least_float32(torch.where(mask_BT.any(dim=-1, keepdim=True), states_BD, 0.0))


def chunked_logprobs(
    hidden_TD: Float[Tensor, "T D"],
    head: LmHead,
    targets_T: Int[Tensor, " T"],
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_size: int | None = None,
) -> ChunkedLogprobs:
    """Score target tokens from the hidden states that predict them.

    With z = head.logits(hidden) / temperature: log p = z_target - logsumexp(z), H = logsumexp(z) - Σ_v p_v z_v.
    The product with the head runs in the dtype of the hidden states, everything after it in float32 at least, and the
    head's gradient is summed over chunks in float32 at least. Equal to the dense computation, in value and gradient.

    Args:
        hidden_TD: [T, D] hidden state before the head, one per target (already shifted).
        head: of the model.
        targets_T: [T] token ids in [0, V).
        temperature: that the tokens were sampled with, > 0.
        with_entropy: also return the entropies, with gradient.
        chunk_size: tokens whose logits exist at a time, >= 1; None: `default_chunk_size`.

    Returns:
        Differentiable (once) with respect to hidden states, weight and bias.

    Raises:
        InvalidInput: a temperature, chunk size or shape out of range.
    """
    chunk_size = default_chunk_size(hidden_TD.device) if chunk_size is None else chunk_size
    _check(hidden_TD, targets_T, temperature, chunk_size)
    logprobs_T, entropies_T = ChunkedLogprobsFunction.apply(  # type: ignore[no-untyped-call]  # torch gives apply no annotations
        hidden_TD,
        head.weight_VD,
        head.bias_V,
        targets_T,
        ChunkSettings(head.scale, head.softcap, temperature, chunk_size, _product_dtype(hidden_TD, head)),
        with_entropy,
    )
    return ChunkedLogprobs(logprobs_T, entropies_T if with_entropy else None)


def default_chunk_size(device: torch.device) -> int:
    """Return how many tokens' logits exist at a time."""
    return _CHUNK_SIZES.get(device.type, _CHUNK_SIZE)


def token_hidden_states(
    model: nn.Module,
    *,
    input_ids_BT: Int[Tensor, "B T"],
    attention_mask_BT: Bool[Tensor, "B T"] | Int[Tensor, "B T"],
    scored_S: Int[Tensor, " S"],
) -> TokenHiddenStates:
    """Run the body of a causal language model on rows that are padded on the right.

    Args:
        model: a Hugging Face causal language model, plain or wrapped by peft; run in the mode it is in.
        input_ids_BT: [B, T] token ids.
        attention_mask_BT: [B, T], True or 1 = a token, False or 0 = padding.
        scored_S: [S] places of the tokens to score in the rows laid end to end; none is the first of its row. The
            heads' work is proportional to their number.

    Raises:
        InvalidInput: a model that cannot be served.
    """
    with padded_right(causal_lm(model)):
        hidden_BTD = hidden_states(model, input_ids_BT=input_ids_BT, attention_mask=attention_mask_BT.long())

    def to_rows(values_S: Tensor) -> Tensor:
        values_N = values_S.new_zeros(input_ids_BT.numel()).index_put((scored_S,), values_S)
        return values_N.view(input_ids_BT.shape)

    return TokenHiddenStates(
        hidden_SD=hidden_BTD.flatten(0, 1).index_select(0, scored_S - 1),
        targets_S=input_ids_BT.flatten().index_select(0, scored_S),
        to_rows=to_rows,
        head=lm_head_of(model),
    )


def _product_dtype(hidden_TD: Tensor, head: LmHead) -> torch.dtype:
    """Return the dtype that the head's linear layer would run in here, autocast included."""
    if head.is_float32:
        return torch.promote_types(hidden_TD.dtype, torch.float32)
    device = hidden_TD.device.type
    if torch.is_autocast_enabled(device) and hidden_TD.dtype is not torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden_TD.dtype


def _check(hidden_TD: Tensor, targets_T: Tensor, temperature: float, chunk_size: int) -> None:
    where = "chunked_logprobs"
    if not temperature > 0:
        do = "score greedy samples at temperature 1"
        raise InvalidInput.of("temperature", "be above 0", temperature, where=where, do=do)
    if chunk_size < 1:
        do = f"leave it at {default_chunk_size(hidden_TD.device)}"
        raise InvalidInput.of("chunk_size", "be at least 1", chunk_size, where=where, do=do)
    if hidden_TD.ndim != 2 or targets_T.shape != hidden_TD.shape[:1]:
        got = f"{list(hidden_TD.shape)} and {list(targets_T.shape)}"
        do = "flatten rows and shift targets first"
        raise InvalidInput.of("hidden and targets", "be [T, D] and [T]", got, where=where, do=do)
