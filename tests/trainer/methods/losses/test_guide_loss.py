"""Guide's loss: the published shaped ratios, PPO for plain rows, and its gradient."""

import pytest
import torch

from envgym.core.tree import Source
from envgym.trainer.methods.losses import LossBatch, PpoClip
from envgym.trainer.methods.losses.guide import GuideLoss
from envgym.trainer.methods.row_ids import RowId, RowIds

NEW = [[-1.0, -2.0, -0.4, -3.0]]
OLD = [[-0.5, -1.2, -0.3, -0.2]]


def batch(new: torch.Tensor, *, sources: list[Source], behavior: list[list[float]] | None = None) -> LossBatch:
    rows, length = new.shape
    return LossBatch(
        logprobs_BT=new,
        old_logprobs_BT=new.detach().clone(),
        advantages_BT=torch.ones(rows, length, dtype=new.dtype),
        loss_mask_BT=torch.ones(rows, length, dtype=torch.bool),
        behavior_logprobs_BT=torch.tensor(behavior or OLD * rows, dtype=new.dtype),
        ids=RowIds(ids=[RowId(episode=number, source=source) for number, source in enumerate(sources)], length=length),
    )


def test_published_shaped_ratios() -> None:
    # r = .606531, .449329, .904837, .06081; its .9-quantile is .606531 + .7 * .298306 = .815345
    result = GuideLoss()(batch(torch.tensor(NEW), sources=[Source.REPLAY]))
    assert (-result.losses_BT[0]).tolist() == pytest.approx([0.426571, 0.355292, 0.526012, 0.069406], abs=1e-6)
    assert result.sums["shaped"].item() == pytest.approx(1.377281, abs=1e-5)


def test_plain_rows_are_clipped_as_by_ppo() -> None:
    new = torch.tensor(NEW * 2, requires_grad=True)
    plain = batch(new, sources=[Source.POLICY, Source.POLICY])
    assert torch.equal(GuideLoss()(plain).losses_BT, PpoClip()(plain).losses_BT)
    mixed = GuideLoss()(batch(new, sources=[Source.POLICY, Source.REPLAY]))
    assert torch.equal(mixed.losses_BT[0], PpoClip()(plain).losses_BT[0])
    assert (-mixed.losses_BT[1]).tolist() == pytest.approx([0.426571, 0.355292, 0.526012, 0.069406], abs=1e-6)


def test_scale_is_that_of_all_hinted_rows() -> None:
    behavior = [OLD[0], [-1.0, -2.0, -0.4, -3.0]]  # the second row's ratios are 1: the .9-quantile of all eight is 1
    result = GuideLoss()(batch(torch.tensor(NEW * 2), sources=[Source.REPLAY] * 2, behavior=behavior))
    assert (-result.losses_BT[1]).tolist() == pytest.approx([0.5] * 4)


def test_gradient_is_that_of_differences_with_the_scale_held() -> None:
    new = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    result = GuideLoss()(batch(new, sources=[Source.REPLAY]))
    (gradient,) = torch.autograd.grad(result.losses_BT.sum(), new)
    ratio = (new.detach() - torch.tensor(OLD, dtype=torch.float64)).exp()
    scale = ratio[0].quantile(0.9)
    step = 1e-6
    for place in range(4):
        moved = ratio.clone()
        moved[0, place] *= torch.exp(torch.tensor(step, dtype=torch.float64))
        change = (-(moved / (moved + scale)) + ratio / (ratio + scale)).sum() / step
        assert gradient[0, place].item() == pytest.approx(change.item(), abs=1e-5)
