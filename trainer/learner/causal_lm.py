"""A causal language model taken apart into body and head, so that its logits need not be built.

This module knows how Hugging Face models (plain or wrapped by peft) store the two and what they do to the logits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from envgym.agents.models.weights import Float32Head
from envgym.errors import InvalidInput

_PROBE_LENGTH = 8
"""Tokens run by `check_head`: enough to see a wrong scale, cheap for any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LmHead:
    """What turns hidden states into logits: cap · tanh(scale (W h + b) / cap), without the cap where it is None."""

    weight_VD: Float[Tensor, "V D"]
    """Row v scores token v; shared with the embedding in models with tied weights."""
    bias_V: Float[Tensor, " V"] | None = None
    """Added to the scores; most models have none."""
    scale: float = 1.0
    """Factor on the logits (Cohere's logit_scale, one over Granite's logits_scaling)."""
    softcap: float | None = None
    """Bound of the logits (Gemma's final_logit_softcapping)."""
    is_float32: bool = False
    """Whether the product is computed in float32 at least, whatever the dtype of hidden states and weights."""

    def logits(self, hidden_TD: Float[Tensor, "T D"]) -> Float[Tensor, "T V"]:
        """Return the logits of a few tokens: the product in the dtype of the arguments, the rest in float32."""
        return self.logits_of(self.product(hidden_TD))

    def product(self, hidden_TD: Float[Tensor, "T D"]) -> Float[Tensor, "T V"]:
        """Return W h + b of a few tokens, in the dtype of the arguments."""
        weight_VD, bias_V = self.weight_VD, self.bias_V
        if self.is_float32:
            hidden_TD, weight_VD = at_least_float32(hidden_TD), at_least_float32(weight_VD)
            bias_V = None if bias_V is None else at_least_float32(bias_V)
        return nn.functional.linear(hidden_TD, weight_VD, bias_V)

    def logits_of(self, product_TV: Float[Tensor, "T V"]) -> Float[Tensor, "T V"]:
        """Return the logits of a `product`, in float32 at least."""
        logits_TV = at_least_float32(product_TV)
        if self.scale != 1.0:
            logits_TV = logits_TV * self.scale
        if self.softcap is not None:
            logits_TV = self.softcap * torch.tanh(logits_TV / self.softcap)
        return logits_TV


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """Return the Hugging Face model inside an optional peft wrapper; its layers keep their adapters.

    Raises:
        InvalidInput: the model is of another kind, or its adapter changes the input instead of the layers.
    """
    unwrap = getattr(model, "get_base_model", None)
    inner = model if unwrap is None else unwrap()
    adapter = getattr(model, "active_peft_config", None)
    if not isinstance(inner, PreTrainedModel) or getattr(adapter, "is_prompt_learning", False):
        do = "pass a transformers causal language model, plain or with LoRA (prompt and prefix tuning are not served)"
        got = type(inner if adapter is None else adapter).__name__
        raise InvalidInput.of("model", "be a Hugging Face causal language model", got, where="causal_lm", do=do)
    return inner


def hidden_states(
    model: nn.Module,
    *,
    input_ids_BT: Int[Tensor, "B T"],
    attention_mask: Shaped[Tensor, "..."] | None = None,
    position_ids_BT: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T D"]:
    """Run the body of a model, in the mode it is in, and return what its head reads.

    Args:
        model: a Hugging Face causal language model, plain or wrapped by peft.
        input_ids_BT: [B, T] token ids.
        attention_mask: passed on: [B, T] padding or [B, 1, T, T] who attends whom; None = all tokens before it.
        position_ids_BT: [B, T] passed on; None = the model counts from 0.
    """
    body = causal_lm(model).get_decoder()
    # Some models (Mamba, ALiBi) know no positions, so the argument is left out unless it says something.
    positions = {} if position_ids_BT is None else {"position_ids": position_ids_BT}
    output = body(input_ids=input_ids_BT, attention_mask=attention_mask, use_cache=False, **positions)
    hidden_BTD: Tensor = output.last_hidden_state
    return hidden_BTD


def lm_head_of(model: nn.Module) -> LmHead:
    """Read the language-model head of a model; the tensors are the model's own, so gradients reach it.

    Raises:
        InvalidInput: the head is not one plain linear layer.
    """
    inner = causal_lm(model)
    layer = inner.get_output_embeddings()
    # peft's modules_to_save keeps a trainable copy of the layer and hides which one is in use.
    copies = getattr(layer, "modules_to_save", None)
    if isinstance(copies, nn.ModuleDict):
        layer = layer.original_module if layer.disable_adapters else copies[layer.active_adapters[0]]
    if type(layer) not in {nn.Linear, Float32Head}:
        do = "leave lm_head out of the adapter's target modules (peft's modules_to_save may train it in full)"
        got = f"{type(layer).__module__}.{type(layer).__name__}"
        raise InvalidInput.of("the model's output layer", "be a plain nn.Linear", got, where="lm_head_of", do=do)
    config = inner.config.get_text_config()
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    return LmHead(
        weight_VD=layer.weight,
        bias_V=layer.bias,
        scale=(1.0 if scale is None else float(scale)) / (1.0 if divisor is None else float(divisor)),
        softcap=getattr(config, "final_logit_softcapping", None),
        is_float32=type(layer) is Float32Head,
    )


def at_least_float32(values: Tensor) -> Tensor:
    """Return the values in float32, or in float64 where they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def check_head(model: nn.Module) -> None:
    """Prove on a few tokens that hidden states and `lm_head_of` give the model's own logits; run it once per model.

    Raises:
        InvalidInput: they differ, so that this model does something to its logits that is not known here.
    """
    inner = causal_lm(model)
    head = lm_head_of(model)
    input_ids_BT = torch.arange(_PROBE_LENGTH, device=head.weight_VD.device)[None] % head.weight_VD.shape[0]
    with eval_mode(model), torch.no_grad():
        ours_TV = head.logits(hidden_states(model, input_ids_BT=input_ids_BT)[0])
        theirs_TV = model(input_ids=input_ids_BT, use_cache=False).logits[0].to(ours_TV.dtype)
    # Both compute the same sums in the model's dtype, in another order at worst.
    tolerance = 16 * torch.finfo(head.weight_VD.dtype).eps * theirs_TV.abs().amax().clamp(min=1.0).item()
    gap = (ours_TV - theirs_TV).abs().amax().item()
    if not gap <= tolerance:
        got = f"a difference of {gap:.3g} for {type(inner).__name__}"
        rule = f"equal head(hidden) to {tolerance:.1g}"
        do = "use a model whose logits are a plain, scaled or soft-capped linear layer"
        raise InvalidInput.of("the model's logits", rule, got, where="check_head", do=do)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation, and each back to what it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every dropout to 0: sampling and training must see one distribution."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout"):  # how attention layers keep theirs
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
