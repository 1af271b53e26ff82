"""Log-probs of rows in one call, for tests and benchmarks of what computes them in two."""

from jaxtyping import Bool, Int
from torch import Tensor, nn

from envgym.trainer.batch.packs import Pack
from envgym.trainer.learner.logprobs import TokenLogprobs, token_hidden_states
from envgym.trainer.learner.packing.support import packed_token_hidden_states


def token_logprobs(
    model: nn.Module,
    *,
    input_ids_BT: Int[Tensor, "B T"],
    attention_mask_BT: Bool[Tensor, "B T"] | Int[Tensor, "B T"],
    loss_mask_BT: Bool[Tensor, "B T"] | None = None,
    temperature: float = 1.0,
    with_entropy: bool = False,
    states_before: Bool[Tensor, "B T"] | None = None,
    chunk_size: int | None = None,
) -> TokenLogprobs:
    """Score the tokens of a batch of rows under a causal language model.

    Args:
        model: see `token_hidden_states`, as the next two.
        input_ids_BT: [B, T].
        attention_mask_BT: [B, T].
        loss_mask_BT: [B, T] tokens to score, a part of the attention mask; None = all.
        temperature: that the tokens were sampled with, > 0.
        with_entropy: also return the entropies, with gradient.
        states_before: also return the hidden state before the first of these tokens of each row.
        chunk_size: tokens whose logits exist at a time, >= 1.

    Returns:
        [B, T] each; the first token of a row follows nothing and is not scored.

    Raises:
        InvalidInput: a model that cannot be served.
    """
    scored_BT = (attention_mask_BT if loss_mask_BT is None else loss_mask_BT).bool().clone()
    scored_BT[:, 0] = False
    states = token_hidden_states(
        model,
        input_ids_BT=input_ids_BT,
        attention_mask_BT=attention_mask_BT,
        scored_S=scored_BT.flatten().nonzero()[:, 0],
    )
    return states.logprobs(
        temperature=temperature, with_entropy=with_entropy, states_before=states_before, chunk_size=chunk_size
    )


def packed_logprobs(
    model: nn.Module,
    pack: Pack,
    *,
    loss_mask_BT: Bool[Tensor, "B T"],
    temperature: float = 1.0,
    with_entropy: bool = False,
    states_before: Bool[Tensor, "B T"] | None = None,
    chunk_size: int | None = None,
) -> TokenLogprobs:
    """Score the rows of a pack; equal to `token_logprobs` of the rows themselves, in value and gradient.

    Args:
        model: see `pack_hidden_states`.
        pack: of the rows.
        loss_mask_BT: tokens to score, among those that the pack trains.
        temperature: that the tokens were sampled with, > 0.
        with_entropy: also return the entropies, with gradient.
        states_before: also return the hidden state before the first of these tokens of each row.
        chunk_size: tokens whose logits exist at a time, >= 1.

    Returns:
        [B, T] each, in the order of the pack's rows; 0 outside the mask.
    """
    states = packed_token_hidden_states(model, pack, loss_mask_BT=loss_mask_BT)
    return states.logprobs(
        temperature=temperature, with_entropy=with_entropy, states_before=states_before, chunk_size=chunk_size
    )
