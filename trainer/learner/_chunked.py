"""The autograd function of `learner.logprobs`: log-prob and entropy of each token, from logits made chunk by chunk."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from envgym.trainer.learner.causal_lm import LmHead


class ChunkSettings(NamedTuple):
    """What is not a tensor."""

    scale: float
    softcap: float | None
    temperature: float
    chunk_size: int
    dtype: torch.dtype
    """Of the product with the head."""

    def head(self, weight_VD: Tensor, bias_V: Tensor | None) -> LmHead:
        """Return the head in the dtype of the product."""
        return LmHead(
            weight_VD=weight_VD.to(self.dtype),
            bias_V=None if bias_V is None else bias_V.to(self.dtype),
            scale=self.scale,
            softcap=self.softcap,
        )

    def chunks(self, length: int) -> list[slice]:
        """Cut range(length) into slices of at most `chunk_size`."""
        return [slice(start, start + self.chunk_size) for start in range(0, length, self.chunk_size)]

    def grad_of_logits(
        self,
        capped_TV: Tensor,
        targets_T: Tensor,
        logsumexp_T: Tensor,
        entropies_T: Tensor | None,
        grad_logprobs_T: Tensor | None,
        grad_entropies_T: Tensor | None,
    ) -> Tensor:
        """Return the gradient with respect to the product of hidden states and head; overwrites `capped_TV`."""
        # The cap's slope is taken before the logits are overwritten.
        slope_TV = None if self.softcap is None else 1 - (capped_TV / self.softcap).square()
        logp_TV = capped_TV.div_(self.temperature).sub_(logsumexp_T[:, None])
        if grad_logprobs_T is None:
            grad_logprobs_T = torch.zeros_like(logsumexp_T)
        if grad_entropies_T is None or entropies_T is None:
            grad_TV = logp_TV.exp_().mul_(-grad_logprobs_T[:, None])
        else:
            p_TV = logp_TV.exp()
            grad_TV = logp_TV.add_(entropies_T[:, None]).mul_(-grad_entropies_T[:, None])
            grad_TV.sub_(grad_logprobs_T[:, None]).mul_(p_TV)
        grad_TV.scatter_add_(-1, targets_T[:, None], grad_logprobs_T[:, None]).mul_(self.scale / self.temperature)
        return grad_TV if slope_TV is None else grad_TV.mul_(slope_TV)


if TYPE_CHECKING:

    class _Context(FunctionCtx):
        """What the backward pass finds; torch makes a class of its own at run time."""

        saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor | None]
        needs_input_grad: tuple[bool, ...]
        settings: ChunkSettings

else:
    _Context = FunctionCtx


class ChunkedLogprobsFunction(torch.autograd.Function):
    """log p and H of each target; the backward pass makes each chunk's logits again.

    With z = logits / temperature: ∂ log p/∂z = onehot(target) - p, ∂H/∂z = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: _Context,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        settings: ChunkSettings,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Reduce each chunk's logits to log p and H."""
        head = settings.head(weight_VD, bias_V)
        logprobs_T = hidden_TD.new_empty(len(targets_T), dtype=torch.promote_types(settings.dtype, torch.float32))
        logsumexp_T = torch.empty_like(logprobs_T)
        entropies_T = torch.empty_like(logprobs_T) if with_entropy else None
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for chunk in settings.chunks(len(targets_T)):
                z_TV = head.logits(hidden_TD[chunk].to(settings.dtype)).div_(settings.temperature)
                logsumexp_T[chunk] = z_TV.logsumexp(dim=-1)
                logprobs_T[chunk] = z_TV.gather(-1, targets_T[chunk, None]).squeeze(-1) - logsumexp_T[chunk]
                if entropies_T is not None:
                    entropies_T[chunk] = logsumexp_T[chunk] - z_TV.softmax(dim=-1).mul_(z_TV).sum(dim=-1)
        ctx.set_materialize_grads(False)
        saved = (hidden_TD, weight_VD, bias_V, targets_T, logsumexp_T, entropies_T)
        ctx.save_for_backward(*saved)  # type: ignore[arg-type]  # None may be saved, which the annotation leaves out
        ctx.settings = settings
        return logprobs_T, entropies_T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _Context, grad_logprobs_T: Tensor | None, grad_entropies_T: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Chain the gradients of log p and H through each chunk's logits, made again."""
        hidden_TD, weight_VD, bias_V, targets_T, logsumexp_T, entropies_T = ctx.saved_tensors
        settings = ctx.settings
        head = settings.head(weight_VD, bias_V)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden_TD = torch.zeros_like(hidden_TD) if wants_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=logsumexp_T.dtype) if wants_weight else None
        grad_bias_V = logsumexp_T.new_zeros(len(weight_VD)) if wants_bias else None
        with torch.autocast(hidden_TD.device.type, enabled=False):
            for chunk in settings.chunks(len(targets_T)):
                chunk_TD = hidden_TD[chunk].to(settings.dtype)
                grad_TV = settings.grad_of_logits(
                    head.logits(chunk_TD),
                    targets_T[chunk],
                    logsumexp_T[chunk],
                    None if entropies_T is None else entropies_T[chunk],
                    None if grad_logprobs_T is None else grad_logprobs_T[chunk],
                    None if grad_entropies_T is None else grad_entropies_T[chunk],
                )
                product_TV = grad_TV.to(settings.dtype)
                if grad_hidden_TD is not None:
                    grad_hidden_TD[chunk] = product_TV @ head.weight_VD
                if grad_weight_VD is not None:
                    _add_product(grad_weight_VD, product_TV.T, chunk_TD)
                if grad_bias_V is not None:
                    grad_bias_V += grad_TV.sum(dim=0)
        return (
            grad_hidden_TD,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None or bias_V is None else grad_bias_V.to(bias_V.dtype),
            *[None] * 3,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right in place, without a copy of the product where all are of one dtype."""
    if total.dtype is left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
