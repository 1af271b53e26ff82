"""Log-probabilities and entropies of tokens from hidden states, chunk by chunk.

Full logits [tokens, vocabulary] are held neither in the forward nor in the backward pass: every chunk of tokens makes
its logits, reduces them to two numbers per token, and makes them again for the gradient. What is added to the memory
of the model is a few buffers of chunk_size x vocabulary, and the gradient of the head.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from envgym.errors import InvalidInput, sentence
from envgym.trainer.lm_head import LmHead, causal_lm, lm_head_of

CHUNK_SIZE = 256
"""Tokens per chunk: enough to keep the matrix product busy, and 128 MiB of float32 logits at a vocabulary of 128k."""


class ChunkedLogprobs(NamedTuple):
    """What `chunked_logprobs` computes, in float32 (float64 for float64 inputs) and nats."""

    logprobs_T: Float[Tensor, " T"]
    """log p of each target under softmax(logits / temperature)."""
    entropies_T: Float[Tensor, " T"] | None
    """Entropy of that distribution; None unless asked for."""


class TokenLogprobs(NamedTuple):
    """What `token_logprobs` computes: at t the token t, given those before it; 0 where a token was not scored."""

    logprobs_BT: Float[Tensor, "B T"]
    """log p of each token under softmax(logits / temperature), in nats."""
    entropies_BT: Float[Tensor, "B T"] | None
    """Entropy of the distribution that each token was drawn from, in nats; None unless asked for."""


def chunked_logprobs(
    hidden_TD: Float[Tensor, "T D"],
    head: LmHead,
    targets_T: Int[Tensor, " T"],
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_size: int = CHUNK_SIZE,
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
        chunk_size: tokens whose logits exist at a time, >= 1.

    Returns:
        Differentiable (once) with respect to hidden states, weight and bias.

    Raises:
        InvalidInput: a temperature, chunk size or shape out of range.
    """
    _check(hidden_TD, targets_T, temperature, chunk_size)
    dtype = hidden_TD.dtype
    logprobs_T, entropies_T = _Chunked.apply(
        hidden_TD,
        head.weight_VD.to(dtype),
        None if head.bias_V is None else head.bias_V.to(dtype),
        targets_T,
        head.scale,
        head.softcap,
        temperature,
        with_entropy,
        chunk_size,
    )
    return ChunkedLogprobs(logprobs_T, entropies_T if with_entropy else None)


def token_logprobs(
    model: nn.Module,
    *,
    input_ids_BT: Int[Tensor, "B T"],
    attention_mask_BT: Bool[Tensor, "B T"] | Int[Tensor, "B T"],
    position_ids_BT: Int[Tensor, "B T"] | None = None,
    loss_mask_BT: Bool[Tensor, "B T"] | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
    chunk_size: int = CHUNK_SIZE,
) -> TokenLogprobs:
    """Score the tokens of a batch of rows under a causal language model.

    Args:
        model: a Hugging Face causal language model, plain or wrapped by peft; run in the mode it is in.
        input_ids_BT: [B, T] token ids.
        attention_mask_BT: [B, T], True or 1 = a token, False or 0 = padding.
        position_ids_BT: [B, T] passed on to the model; None = it counts from 0, which needs padding on the right.
        loss_mask_BT: [B, T] tokens to score, a subset of the attention mask; None = all. The head's work is
            proportional to their number.
        temperature: that the tokens were sampled with, > 0.
        with_entropy: also return the entropies, with gradient.
        chunk_size: tokens whose logits exist at a time, >= 1.

    Returns:
        [B, T] each; the first token of a row follows nothing and is not scored.

    Raises:
        InvalidInput: padding on the left without position ids, or a model that cannot be served.
    """
    present_BT = attention_mask_BT.bool()
    if position_ids_BT is None and bool((present_BT[:, 1:] & ~present_BT[:, :-1]).any()):
        do = "pad on the right, or pass position_ids"
        got = "a token after padding"
        raise InvalidInput(sentence("attention_mask", "pad on the right", got, where="token_logprobs", do=do))
    output = causal_lm(model).get_decoder()(
        input_ids=input_ids_BT,
        attention_mask=attention_mask_BT.long(),
        use_cache=False,
        **({} if position_ids_BT is None else {"position_ids": position_ids_BT}),
    )
    scored_BT = present_BT if loss_mask_BT is None else loss_mask_BT
    rows_T, before_T = scored_BT[:, 1:].nonzero(as_tuple=True)
    here = (rows_T, before_T + 1)
    result = chunked_logprobs(
        output.last_hidden_state[rows_T, before_T],
        lm_head_of(model),
        input_ids_BT[here],
        temperature=temperature,
        with_entropy=with_entropy,
        chunk_size=chunk_size,
    )

    def spread(values_T: Float[Tensor, " T"]) -> Float[Tensor, "B T"]:
        return values_T.new_zeros(input_ids_BT.shape).index_put(here, values_T)

    entropies_BT = None if result.entropies_T is None else spread(result.entropies_T)
    return TokenLogprobs(spread(result.logprobs_T), entropies_BT)


class _Context(FunctionCtx):
    """What the backward pass finds."""

    saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor | None]
    needs_input_grad: tuple[bool, ...]
    scale: float
    softcap: float | None
    temperature: float
    chunk_size: int


class _Chunked(torch.autograd.Function):
    """log p and H per token; the gradient makes each chunk's logits again.

    With z = logits / temperature: ∂log p/∂z = onehot(target) - p, ∂H/∂z = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: _Context,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        scale: float,
        softcap: float | None,
        temperature: float,
        with_entropy: bool,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Reduce each chunk's logits to log p and H."""
        head = LmHead(weight_VD=weight_VD, bias_V=bias_V, scale=scale, softcap=softcap)
        dtype = torch.promote_types(hidden_TD.dtype, torch.float32)
        logprobs_T, logsumexp_T, entropies_T = hidden_TD.new_empty((3, targets_T.numel()), dtype=dtype)
        for chunk in _chunks(targets_T.numel(), chunk_size):
            z_TV = head.logits(hidden_TD[chunk]) / temperature
            logsumexp_T[chunk] = z_TV.logsumexp(dim=-1)
            logprobs_T[chunk] = z_TV.gather(-1, targets_T[chunk, None]).squeeze(-1) - logsumexp_T[chunk]
            if with_entropy:
                entropies_T[chunk] = logsumexp_T[chunk] - (z_TV.softmax(dim=-1) * z_TV).sum(dim=-1)
        entropies = entropies_T.clone() if with_entropy else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden_TD, weight_VD, bias_V, targets_T, logsumexp_T, entropies)
        ctx.scale, ctx.softcap, ctx.temperature, ctx.chunk_size = scale, softcap, temperature, chunk_size
        return logprobs_T.clone(), entropies
