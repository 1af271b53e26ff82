"""Importance weights from log-probability gaps, for every correction that weighs."""

from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from envgym.trainer.metrics_math import LOG_RATIO_BOUND


class WeightLevel(StrEnum):
    """What one importance weight covers."""

    NONE = "none"
    """Nothing: every weight is 1."""
    TOKEN = "token"
    """Every token has its own; the mismatch of the tokens before it is ignored."""
    SEQUENCE = "sequence"
    """All trained tokens of a row share the product of theirs."""


def importance_weights(gap_BT: Float[Tensor, "B T"], level: WeightLevel) -> Float[Tensor, "B T"]:
    """Return 1, ρ_t or ∏_t ρ_t at every place, logarithms clamped to ±20.

    Args:
        gap_BT: [B, T] log ρ from `behavior_gap`, 0 where nothing trains.
        level: which of the three.
    """
    if level is WeightLevel.NONE:
        return torch.ones_like(gap_BT)
    log_weights_BT = gap_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if level is WeightLevel.SEQUENCE:
        log_weights_BT = log_weights_BT.sum(dim=-1, keepdim=True).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        log_weights_BT = log_weights_BT.expand_as(gap_BT)
    return log_weights_BT.exp()
