"""The value loss: by hand, and what the clip and the mask do."""

import math

import pytest
import torch
from torch import Tensor

from envgym.trainer.learner.critic import value_loss


def of(value: float, target: float, old: float, *, mask: bool = True, clip: float | None = None) -> tuple[float, float]:
    values_BT = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)

    def one(number: float) -> Tensor:
        return torch.tensor([[number]], dtype=torch.float64)

    losses_BT = value_loss(values_BT, one(target), one(old), torch.tensor([[mask]]), clip=clip)
    (gradient,) = torch.autograd.grad(losses_BT.sum(), values_BT)
    return losses_BT.item(), gradient.item()


@pytest.mark.parametrize(
    "value,target,old,clip,expected",
    [
        (1.0, 3.0, 0.0, None, (2.0, -2.0)),  # (1 - 3)^2 / 2, and V - R
        (1.0, 3.0, 0.8, 0.5, (2.0, -2.0)),  # moved by 0.2 < 0.5: as without a clip
        (1.0, 2.0, 0.0, 0.5, (1.125, 0.0)),  # moved to the target's side by more than 0.5: (0.5 - 2)^2 / 2, no gradient
        (1.0, -2.0, 0.0, 0.5, (4.5, 3.0)),  # moved away from the target: the larger loss is (1 + 2)^2 / 2
    ],
)
def test_by_hand(value: float, target: float, old: float, clip: float | None, expected: tuple[float, float]) -> None:
    assert of(value, target, old, clip=clip) == pytest.approx(expected)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_nothing_under_the_mask_is_read(clip: float | None) -> None:
    assert of(math.nan, math.inf, math.nan, mask=False, clip=clip) == (0.0, 0.0)
