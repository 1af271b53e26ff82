"""Estimates of a KL divergence from one sampled token, as numbers and as loss terms.

With d = log(p/q) at a token sampled from p, each function estimates KL(p || q) = E_p[d].
Source: http://joschu.net/blog/kl-approx.html

As a *loss term* on the policy (p = π, q = reference, on-policy samples) what counts is the gradient, not the value:
- k1: E[∇ log π] = 0, so it constrains nothing; it belongs into the reward, not the loss.
- k2: E[d ∇ log π] = ∇ KL(π || reference): the gradient one usually means.
- k3: E[(1 - q/p) ∇ log π] = ∇ KL(reference || π): the other divergence's gradient, equal to first order near d = 0.
"""

from typing import Final, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.trainer.methods.tensors import LOG_RATIO_BOUND, check_rows
from envgym.trainer.tables import KINDS


class KlEstimator(Protocol):
    """Estimates a KL divergence from one sampled token."""

    def __call__(self, log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return an estimate of KL(p || q) for each d = log(p/q) of a token sampled from p."""
        ...


KL_ESTIMATOR: Final[PluginKind[KlEstimator]] = KINDS["kl_estimator"]


def k1(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return d: unbiased, of high variance, negative for many tokens."""
    return log_ratio


def k2(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return d²/2: biased, of low variance, never negative."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return exp(-d) - 1 + d, constant below d = -20: unbiased, of low variance, never negative."""
    bounded = log_ratio.clamp(min=-LOG_RATIO_BOUND)
    return torch.expm1(-bounded) + bounded


def kl_to_reference(
    logprobs_BT: Float[Tensor, "B T"],
    reference_logprobs_BT: Float[Tensor, "B T"],
    loss_mask_BT: Bool[Tensor, "B T"],
    *,
    estimator: KlEstimator,
) -> Float[Tensor, "B T"]:
    """Estimate KL(policy || reference) at every trained token.

    Returns:
        [B, T] in nats, with gradient; exactly 0, with gradient 0, where the mask is False.
    """
    others = {"logprobs": logprobs_BT, "reference_logprobs": reference_logprobs_BT}
    check_rows(loss_mask_BT, others, where="kl_to_reference")
    log_ratio_BT = torch.where(loss_mask_BT, logprobs_BT - reference_logprobs_BT, 0.0)
    return estimator(log_ratio_BT)
