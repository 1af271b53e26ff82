"""Central differences: what a gradient must agree with."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def central_difference(function: Callable[[float], Number], step: float = 1e-6) -> Number:
    """Return (f(step) - f(-step)) / (2 step): the slope at 0."""
    return (function(step) - function(-step)) / (2 * step)


def partial_differences(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the slope of a scalar function along every entry of its argument, shaped as the argument."""

    def along(direction: Tensor) -> Tensor:
        return central_difference(lambda by: function(at + by * direction))

    directions = torch.eye(at.numel(), dtype=at.dtype).view(-1, *at.shape)
    return torch.stack([along(direction) for direction in directions]).view(at.shape)


class Slopes(NamedTuple):
    by_gradient: float
    by_difference: float


def slopes_along(loss: Callable[[], float], weights: Sequence[Tensor], gradient: Sequence[Tensor]) -> Slopes:
    """Compare a gradient with the loss itself along a random direction of all weights, which stay as they are.

    Args:
        loss: of the weights as they are when it is called.
        weights: float64; moved in place, and back.
        gradient: of the loss by each of them.
    """
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(weight.shape, generator=generator, dtype=torch.float64) for weight in weights]
    start = [weight.detach().clone() for weight in weights]

    def moved(by: float) -> float:
        with torch.no_grad():
            for weight, value, way in zip(weights, start, directions, strict=True):
                weight.copy_(value + by * way)
        return loss()

    difference = central_difference(moved)
    moved(0.0)
    pairs = zip(gradient, directions, strict=True)
    return Slopes(by_gradient=sum((part * way).sum().item() for part, way in pairs), by_difference=difference)
