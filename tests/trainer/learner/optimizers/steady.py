"""Weights that are pushed by a steady gradient in noise: how far an optimizer moves them."""

import torch
from torch import Tensor, nn

from envgym.trainer.learner.optimizers.exact import LEFT_OUT, joined
from envgym.trainer.learner.settings import OptimSettings

SIZE, STEPS = 4096, 50
RATES = (1e-6, 5e-6, 1e-5, 1e-4)


class Weights(nn.Module):
    """A matrix of the usual size of a language model's weights, and a vector of ones as its norms have."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        matrix = torch.randn((2, SIZE // 2), generator=rng) * 0.02
        self.matrix = nn.Parameter(matrix.bfloat16().to(dtype))
        self.vector = nn.Parameter(torch.ones(SIZE // 8, dtype=dtype))

    def push(self, step: int) -> None:
        """Set a steady gradient in noise, the same for every dtype."""
        rng = torch.Generator().manual_seed(step + 1)
        for parameter in self.parameters():
            noisy = 0.3 + torch.randn(parameter.shape, generator=rng)
            parameter.grad = noisy.bfloat16().to(parameter.dtype)


def trained(
    dtype: torch.dtype, optimizer_of: object, rate: float, **optim: object
) -> tuple[Weights, torch.optim.Optimizer]:
    model = Weights(dtype)
    optimizer = optimizer_of(model, OptimSettings.model_validate({"lr": rate, **optim}))  # type: ignore[operator]
    for step in range(STEPS):
        model.push(step)
        optimizer.step()
    return model, optimizer


def plain_adamw(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=0.0)


def exact_values(model: Weights, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        joined(p.detach(), optimizer.state[p][LEFT_OUT]) if p.dtype is torch.bfloat16 else p.detach()
        for p in model.parameters()
    ]


def moved(values: list[Tensor], start: list[Tensor]) -> list[float]:
    return [(value - first).norm().item() for value, first in zip(values, start, strict=True)]
