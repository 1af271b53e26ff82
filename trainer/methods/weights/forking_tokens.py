"""Forking tokens: only where the policy is unsure does it learn."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.scores import ScoreRequest

ENTROPIES = ScoreRequest(name="entropies", quantity="entropies")
"""Of the policy as the step begins."""


class ForkingTokens(Settings):
    """Keep the advantages of the tokens of highest entropy: A'_t = A_t where H_t >= τ, else 0.

    τ is the entropy of the last of the ⌈share · N⌉ highest among the N trained tokens of the step. The other tokens go
    on counting in the denominator. With a share of 1 nothing changes.

    Source: 2506.01939, where τ is that of a micro-batch; here it is the step's, so that batching changes nothing.
    """

    share: float = Field(default=0.2, gt=0, le=1)
    """Of the tokens that keep theirs; ties are kept."""
    by: Literal["entropy", "surprisal"] = "entropy"
    """`entropy` of the distribution (one more pass); `surprisal` of the sampled token, as the sampler stated it."""

    @property
    def scores(self) -> tuple[ScoreRequest, ...]:
        return (ENTROPIES,) if self.by == "entropy" else ()

    def __call__(self, batch: LossBatch) -> Float[Tensor, "N T"]:
        doubts_NT = batch.score(ENTROPIES.name) if self.by == "entropy" else -batch.old_logprobs_BT
        trained_S = doubts_NT[batch.loss_mask_BT]
        if not len(trained_S):
            return batch.advantages_BT
        least = trained_S.topk(math.ceil(self.share * len(trained_S))).values[-1]
        return torch.where(doubts_NT >= least, batch.advantages_BT, 0.0)
