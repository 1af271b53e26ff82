"""AdamW and the course of its learning rate."""

import math

import torch
from torch import nn

from envgym.trainer.settings import OptimSettings


def adamw(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    """Build AdamW over the trainable parameters; vectors (norms, biases) do not decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True
    )


def schedule(optim: OptimSettings, step: int, num_steps: int) -> float:
    """Return the factor on the learning rate at `step` (from 0): a linear warmup, then the decay."""
    if step < optim.warmup_steps:
        return (step + 1) / (optim.warmup_steps + 1)
    left = max(num_steps - optim.warmup_steps, 1)
    share = min(max(step - optim.warmup_steps, 0) / left, 1.0)
    match optim.decay:
        case "linear":
            return 1.0 - share
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * share))
        case "constant":
            return 1.0
