"""The contract of a correction for samples that another engine (or an older policy) drew, and what ours share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from envgym.config.plugins import PluginKind
from envgym.config.settings import Settings
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.tensors import LOG_RATIO_BOUND, BatchStats, check_rows, masked_max, masked_sum
from envgym.trainer.tables import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionStats(BatchStats):
    """How far the sampler was from the trainer, and what was done about it: sums and counts.

    Over trained tokens, but for `rows`. The log-prob gap is log π_old - log π_behavior, measured before any clamp.
    """

    tokens: Int[Tensor, ""]
    """Trained tokens before the correction."""
    rejected_tokens: Int[Tensor, ""]
    """Tokens the correction masked."""
    truncated_tokens: Int[Tensor, ""]
    """Tokens whose weight was capped."""
    weight_sum: Float[Tensor, ""]
    """Σ weight over the tokens that still train."""
    weight_square_sum: Float[Tensor, ""]
    """Σ weight²; (Σ weight)² / Σ weight² is the effective sample size in tokens."""
    gap_sum: Float[Tensor, ""]
    """Σ |gap| in nats."""
    gap_max: Float[Tensor, ""]
    """max |gap|; -inf without trained tokens."""
    kl_sum: Float[Tensor, ""]
    """Σ k3 of KL(π_behavior || π_old), in nats."""
    rows: Int[Tensor, ""]
    """Rows with a trained token before the correction."""
    rejected_rows: Int[Tensor, ""]
    """Those of which the correction left none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionResult:
    """What to multiply losses with, and which tokens still train."""

    weights_BT: Float[Tensor, "B T"]
    """Detached factors for the losses, not for their denominator; 0 where the mask below is False."""
    loss_mask_BT: Bool[Tensor, "B T"]
    """The given mask, or less of it."""
    stats: CorrectionStats
    """Detached."""


@runtime_checkable
class Correction(Protocol):
    """Weights or masks for the mismatch between the engine that sampled and the one that trains.

    It is applied once to the *whole* batch, before it is split into micro-batches.
    """

    @property
    def is_identity(self) -> bool:
        """True where every weight is 1 and the mask stays as it is."""
        ...

    @property
    def only_masks(self) -> bool:
        """True where every weight is 0 or 1, so that ratios are not weighed twice."""
        ...

    def __call__(
        self,
        *,
        old_logprobs_BT: Float[Tensor, "B T"],
        behavior_logprobs_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> CorrectionResult:
        """Return weights and the mask.

        Args:
            old_logprobs_BT: [B, T] of the policy before the update, computed by the trainer, in nats.
            behavior_logprobs_BT: [B, T] as the sampler reported them.
            loss_mask_BT: [B, T] bool, True = trains. Values of the other tensors under it are never read.
        """
        ...


CORRECTION: Final[PluginKind[Correction]] = KINDS["correction"]


class Weighed(NamedTuple):
    """How a correction weighs the tokens of a batch."""

    weights_BT: Float[Tensor, "B T"]
    """Factors; read where the next is True."""
    kept_mask_BT: Bool[Tensor, "B T"]
    """Tokens that still train, a subset of the loss mask."""
    truncated_BT: Bool[Tensor, "B T"] | None = None
    """Tokens whose weight was capped; None: there is no cap."""


class GapCorrection(Settings, ABC):
    """The base of ours: each says only how it weighs gaps; what it measures is the same for all."""

    is_identity: ClassVar[bool] = False

    def __call__(
        self,
        *,
        old_logprobs_BT: Float[Tensor, "B T"],
        behavior_logprobs_BT: Float[Tensor, "B T"],
        loss_mask_BT: Bool[Tensor, "B T"],
    ) -> CorrectionResult:
        """Return the weights and what is left of the mask; arguments as for `Correction`."""
        others = {"old_logprobs": old_logprobs_BT, "behavior_logprobs": behavior_logprobs_BT}
        check_rows(loss_mask_BT, others, where="a correction")
        gap_BT = torch.where(loss_mask_BT, old_logprobs_BT - behavior_logprobs_BT, 0.0).detach()
        weights_BT, kept_mask_BT, truncated_BT = self.weigh(gap_BT, loss_mask_BT)
        weights_BT = torch.where(kept_mask_BT, weights_BT, 0.0).detach()
        truncated_BT = torch.zeros_like(kept_mask_BT) if truncated_BT is None else truncated_BT
        stats = CorrectionStats(
            tokens=loss_mask_BT.sum(),
            rejected_tokens=(loss_mask_BT & ~kept_mask_BT).sum(),
            truncated_tokens=(truncated_BT & kept_mask_BT).sum(),
            weight_sum=weights_BT.sum(),
            weight_square_sum=weights_BT.square().sum(),
            gap_sum=masked_sum(gap_BT.abs(), loss_mask_BT),
            gap_max=masked_max(gap_BT.abs(), loss_mask_BT),
            kl_sum=masked_sum(k3(-gap_BT), loss_mask_BT),
            rows=loss_mask_BT.any(dim=-1).sum(),
            rejected_rows=(loss_mask_BT.any(dim=-1) & ~kept_mask_BT.any(dim=-1)).sum(),
        )
        return CorrectionResult(weights_BT=weights_BT, loss_mask_BT=kept_mask_BT, stats=stats)

    @abstractmethod
    def weigh(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Weighed:
        """Weigh the tokens by their gaps.

        Args:
            gap_BT: [B, T] log ρ = log π_old - log π_behavior, detached, 0 where the mask is False.
            loss_mask_BT: [B, T] bool, True = trains.
        """


class NoCorrection(GapCorrection):
    """Trust the sampler: weight 1 for every trained token. The gap is still measured."""

    is_identity: ClassVar[bool] = True
    only_masks: ClassVar[bool] = True

    def weigh(self, gap_BT: Float[Tensor, "B T"], loss_mask_BT: Bool[Tensor, "B T"]) -> Weighed:
        """Return weights of 1 and the mask as it is."""
        return Weighed(torch.ones_like(gap_BT), loss_mask_BT)


class WeightLevel(StrEnum):
    """What one importance weight covers."""

    NONE = "none"
    """Nothing: every weight is 1."""
    TOKEN = "token"
    """Every token has its own; the mismatch of the tokens before it is ignored."""
    SEQUENCE = "sequence"
    """All trained tokens of a row share the product of theirs."""


def importance_weights(gap_BT: Float[Tensor, "B T"], level: WeightLevel) -> Float[Tensor, "B T"]:
    """Return 1, ρ_t or ∏_t ρ_t at every place, its logarithm clamped to ±20.

    Args:
        gap_BT: [B, T] log ρ, 0 where nothing trains.
        level: which of the three.
    """
    if level is WeightLevel.NONE:
        return torch.ones_like(gap_BT)
    log_weights_BT = gap_BT
    if level is WeightLevel.SEQUENCE:
        log_weights_BT = gap_BT.sum(dim=-1, keepdim=True).expand_as(gap_BT)
    return log_weights_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
