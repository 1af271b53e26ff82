"""Hidden states of packed rows, each computed once for all rows that share the token."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from envgym.trainer.batch.packs import Pack
from envgym.trainer.learner.causal_lm import causal_lm, hidden_states, lm_head_of
from envgym.trainer.learner.logprobs import TokenHiddenStates
from envgym.trainer.learner.packing import attention


def pack_hidden_states(model: nn.Module, pack: Pack) -> Float[Tensor, "N D"]:
    """Return what the model's head, or any other head on its tokens, reads at each place of a pack.

    Args:
        model: one that `can_pack`, or of the same architecture; it is given the attention that packs need.
        pack: on the model's device.
    """
    attention.use_tree_attention(causal_lm(model))
    input_ids_BT = pack.input_ids_N[None]
    with attention.running(pack):
        return hidden_states(
            model,
            input_ids_BT=input_ids_BT,
            # A mask of tokens and padding, though there is no padding: without one, transformers would guess from
            # the positions where rows begin.
            attention_mask=torch.ones_like(input_ids_BT),
            position_ids_BT=pack.depths_N[None],
        )[0]


def packed_token_hidden_states(model: nn.Module, pack: Pack, *, loss_mask_BT: Bool[Tensor, "B T"]) -> TokenHiddenStates:
    """Run the body of a model on a pack; equal to `token_hidden_states` of the rows, with shared tokens once.

    Args:
        model: see `pack_hidden_states`.
        pack: of the rows.
        loss_mask_BT: tokens to score, among those that the pack trains.
    """
    hidden_ND = pack_hidden_states(model, pack)

    def to_rows(scored_S: Tensor) -> Tensor:
        scored_N = scored_S.new_zeros(len(pack)).index_put((pack.trained_S,), scored_S)
        return pack.to_rows(scored_N, loss_mask_BT)

    return TokenHiddenStates(
        hidden_SD=hidden_ND.index_select(0, pack.parents_S),
        targets_S=pack.input_ids_N[pack.trained_S],
        to_rows=to_rows,
        head=lm_head_of(model),
    )
