"""Position weights: early or late tokens of a row count more."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from envgym.config.settings import Settings
from envgym.trainer.methods.losses.base import LossBatch


class PositionWeights(Settings):
    """Weigh by place: A'_t = A_t (first + (last - first) t / (T - 1)), t = 0 .. T - 1 over a row's trained tokens.

    A row with one trained token takes `first`. With first = last = 1 nothing changes. Source: own.
    """

    first: float = Field(default=1.0, ge=0)
    """Factor of a row's first trained token."""
    last: float = Field(default=1.0, ge=0)
    """Factor of its last one."""

    def __call__(self, batch: LossBatch) -> Float[Tensor, "N T"]:
        mask_NT = batch.loss_mask_BT
        places_NT = (mask_NT.cumsum(dim=1) - 1).clamp(min=0)
        steps_N1 = (mask_NT.sum(dim=1, keepdim=True) - 1).clamp(min=1)
        return batch.advantages_BT * (self.first + (self.last - self.first) * places_NT / steps_N1)
