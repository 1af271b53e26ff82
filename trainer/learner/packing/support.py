"""Hidden states of packed rows, and the proof that a model computes in a pack what it computes from rows."""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from envgym.errors import sentence
from envgym.trainer.batch.packs import Pack, build_pack, build_trie
from envgym.trainer.batch.rows import pack_multiple
from envgym.trainer.learner.causal_lm import causal_lm, eval_mode, hidden_states, lm_head_of
from envgym.trainer.learner.logprobs import TokenHiddenStates
from envgym.trainer.learner.packing import attention

_PROBE = ((0, 1, 2, 3, 1, 2), (0, 1, 2, 3, 4, 0), (0, 1, 3, 0, 2, 4))
"""Two branchings; a model that mixes branches, or counts positions along the pack, is found out."""
_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")
"""Kinds of layers that are a mask on attention; the others (linear attention, state spaces) carry a state along."""
_TOLERANCE = 1e-4
"""Of the root mean square: far above rounding in float32, far below what one wrong token makes."""


def can_pack(model: nn.Module) -> bool:
    """Prepare a model for packs and return True; warn, leave it as it was and return False where that cannot be."""
    inner = causal_lm(model)
    if inner.config._attn_implementation == attention.NAME:
        return True
    reason = _obstacle(inner) or _probe(model, inner)
    if reason is not None:
        do = "nothing is lost but time; optim.packing=false asks for rows without this warning"
        rule = "let shared prefixes be computed once"
        warnings.warn(sentence(f"{type(inner).__name__}", rule, reason, where="optim.packing", do=do), stacklevel=2)
    return reason is None


def _obstacle(inner: PreTrainedModel) -> str | None:
    if inner.config._attn_implementation != "sdpa":
        return f"attn_implementation='{inner.config._attn_implementation}' instead of 'sdpa'"
    layers = getattr(inner.config.get_text_config(), "layer_types", None) or ()
    return next((f"a layer of {layer}" for layer in layers if layer not in _LAYERS), None)


def _probe(model: nn.Module, inner: PreTrainedModel) -> str | None:
    """Run a few rows both ways; return what was found wrong, with the attention put back."""
    before = inner.config._attn_implementation
    exact = torch.autocast(inner.device.type, enabled=False)  # rounding of its own kind is no obstacle
    with eval_mode(model), torch.no_grad(), exact:
        rows = [_alone(model, row) for row in _PROBE]
        attention.use_tree_attention(inner)
        try:
            packed = _packed(model)
        except Exception as error:  # noqa: BLE001  # whatever a model's code does with a mask that it does not know
            inner.config._attn_implementation = before
            return f"{type(error).__name__} from its attention"
    expected, actual = torch.cat(rows).double(), torch.cat(packed).double()
    gap = ((actual - expected).square().mean() / expected.square().mean()).sqrt().item()
    if gap <= max(_TOLERANCE, 16 * torch.finfo(rows[0].dtype).eps):
        return None
    inner.config._attn_implementation = before
    return f"hidden states that differ by {gap:.2g}"


def _alone(model: nn.Module, row: tuple[int, ...]) -> Tensor:
    ids = torch.tensor([row], device=causal_lm(model).device)
    return hidden_states(model, input_ids_BT=ids, attention_mask=torch.ones_like(ids))[0]


def _packed(model: nn.Module) -> list[Tensor]:
    """Return the hidden states of each row, computed in one pack."""
    trie = build_trie(_PROBE, range(len(_PROBE)))
    masks = [(True,) * len(row) for row in _PROBE]
    device = causal_lm(model).device
    pack = build_pack(_PROBE, masks, trie, range(len(_PROBE)), device, multiple=pack_multiple(device))
    hidden_ND = pack_hidden_states(model, pack)
    return [hidden_ND[places] for _, places in sorted(zip(trie.rows, pack.places_BT, strict=True))]


def pack_hidden_states(model: nn.Module, pack: Pack) -> Float[Tensor, "N D"]:
    """Return the hidden states that the model's head, or any other head, reads at each place of a pack.

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
