"""AdamW: decoupled weight decay. Source: 1711.05101."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from envgym.config.settings import Settings
from envgym.trainer.learner.optimizers.base import bytes_here, decay_groups, left_out_bytes, trainable
from envgym.trainer.learner.optimizers.exact import ExactAdamW
from envgym.trainer.learner.settings import ADAMW_EPS, OptimSettings


class AdamW(Settings):
    """AdamW, fused; for weights in bfloat16 one that loses no update to rounding."""

    eps: float = Field(default=ADAMW_EPS, gt=0)
    """Constant that is added to the divisor."""

    trains_bfloat16: ClassVar = True
    trains_shards: ClassVar = True

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        """Build it over the trainable parameters; vectors (norms, biases) do not decay."""
        parameters = trainable(model)
        is_short = any(parameter.dtype is torch.bfloat16 for parameter in parameters)
        groups = decay_groups(parameters, optim)
        if is_short:
            return ExactAdamW(groups, {"lr": optim.lr, "betas": optim.betas, "eps": self.eps})
        return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=self.eps, fused=True)

    def slowest_decay(self, optim: OptimSettings) -> float:
        """Return the larger one of `betas`."""
        return max(optim.betas)

    def state_bytes(self, model: nn.Module) -> int:
        """Return 8 bytes for each weight in float32 (two moments), 6 in bfloat16 (two moments, left-out bits)."""
        parameters = trainable(model)
        return 2 * bytes_here(parameters) + left_out_bytes(parameters)
