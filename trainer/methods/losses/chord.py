"""CHORD's imitation of demonstrations, weighted by what the policy makes of each token."""

import math
from typing import Literal

import torch
from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch, TokenLoss


class Chord(Settings):
    """Imitate where the policy is uncertain: l = -w log π, with w = π (1 - π) (`phi`) or w = π (`probability`).

    The weight carries no gradient. It fades at tokens that the policy knows, and at those that would upset it. With
    `none` it is the negative log-likelihood. The whole is (1 - μ) L_policy + μ L_demonstrations, with a `cosine` for
    `objective.policy_coef` and for the term's `coef`.

    Source: 2508.11408 (CHORD), from its authors' code.
    """

    weight: Literal["phi", "probability", "none"] = "phi"
    """Weight of a token: π (1 - π) (`phi`), π (`probability`), or 1 (`none`)."""
    cutoff: float = Field(default=1.0, gt=0, le=1)
    """Tokens more probable than this have no gradient."""

    def __call__(self, batch: LossBatch) -> TokenLoss:
        logprobs_BT = torch.where(batch.loss_mask_BT, batch.logprobs_BT, 0.0)
        chance_BT = logprobs_BT.detach().exp()
        weights_BT = torch.ones_like(chance_BT)
        if self.weight == "phi":
            weights_BT = chance_BT * (1 - chance_BT)
        elif self.weight == "probability":
            weights_BT = chance_BT
        losses_BT = -weights_BT * logprobs_BT.clamp(max=math.log(self.cutoff))
        return TokenLoss(losses_BT=torch.where(batch.loss_mask_BT, losses_BT, 0.0))
