"""The autograd function of `learner.logprobs`: log-prob and entropy of each token, from logits made chunk by chunk."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from envgym.trainer.learner.causal_lm import LmHead

STRIP_ENTRIES = 2**18
"""Logits that a CPU reduces at a time: as many as stay in its caches between one pass over them and the next."""


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
        """Cut range(length) into slices of at most `chunk_size`: tokens whose logits exist at a time."""
        return _cut(slice(0, length), self.chunk_size)

    def strips(self, chunk: slice, head: LmHead) -> list[slice]:
        """Cut a chunk into the tokens whose logits are read again and again before those of the next."""
        if head.weight_VD.device.type != "cpu":
            return [chunk]
        return _cut(chunk, max(STRIP_ENTRIES // len(head.weight_VD), 1))

    def grad_of_logits(
        self,
        capped_TV: Tensor,
        targets_T: Tensor,
        logsumexp_T: Tensor,
        entropies_T: Tensor | None,
        grad_logprobs_T: Tensor | None,
        grad_entropies_T: Tensor | None,
    ) -> Tensor:
        """Return the gradient with respect to the product of hidden states and head; may overwrite `capped_TV`."""
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
                product_TV = head.product(hidden_TD[chunk].to(settings.dtype))
                for strip in settings.strips(chunk, head):
                    z_TV = head.logits_of(product_TV[_within(strip, chunk)]).div_(settings.temperature)
                    chosen_T = z_TV.gather(-1, targets_T[strip, None]).squeeze(-1)
                    most_T = z_TV.amax(dim=-1)
                    e_TV = z_TV.sub_(most_T[:, None]).exp() if with_entropy else z_TV.sub_(most_T[:, None]).exp_()
                    sum_T = e_TV.sum(dim=-1)
                    logsumexp_T[strip] = sum_T.log() + most_T
                    logprobs_T[strip] = chosen_T - logsumexp_T[strip]
                    if entropies_T is not None:
                        entropies_T[strip] = sum_T.log() - e_TV.mul_(z_TV).sum(dim=-1) / sum_T
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
                product_TV = head.product(chunk_TD)  # strip by strip, its gradient takes its place
                for strip in settings.strips(chunk, head):
                    here_TV = product_TV[_within(strip, chunk)]
                    grad_TV = settings.grad_of_logits(
                        head.logits_of(here_TV),
                        targets_T[strip],
                        logsumexp_T[strip],
                        None if entropies_T is None else entropies_T[strip],
                        None if grad_logprobs_T is None else grad_logprobs_T[strip],
                        None if grad_entropies_T is None else grad_entropies_T[strip],
                    )
                    if grad_bias_V is not None:
                        grad_bias_V += grad_TV.sum(dim=0)
                    here_TV.copy_(grad_TV)
                if grad_hidden_TD is not None:
                    grad_hidden_TD[chunk] = product_TV @ head.weight_VD
                if grad_weight_VD is not None:
                    _add_product(grad_weight_VD, product_TV.T, chunk_TD)
        return (
            grad_hidden_TD,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None or bias_V is None else grad_bias_V.to(bias_V.dtype),
            *[None] * 3,
        )


def _cut(span: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, span.stop)) for start in range(span.start, span.stop, size)]


def _within(strip: slice, chunk: slice) -> slice:
    return slice(strip.start - chunk.start, strip.stop - chunk.start)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right in place, without a copy of the product where all are of one dtype."""
    if total.dtype is left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
