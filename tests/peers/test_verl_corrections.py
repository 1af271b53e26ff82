"""Our weights and rejections equal those of verl's rollout correction."""

from typing import Any

import pytest
import torch
from torch import Tensor

from envgym.trainer.methods.corrections import Correction, CorrectionResult, Geometric, IcePop, Mis, Tis, WeightLevel
from envgym.trainer.methods.corrections.rejection import Divergence
from envgym.trainer.methods.corrections.tis import TisLevel

pytestmark = pytest.mark.peers


def batch() -> tuple[Tensor, Tensor]:
    """Return gaps [8, 6] of rows of one to six tokens, some small and some wild, and the mask."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.01, 0.05, 0.1, 0.3, 0.6, 1.0, 2.0, 30.0], dtype=torch.float64)
    gap = scale[:, None] * torch.randn(8, 6, dtype=torch.float64, generator=generator)
    return gap, torch.arange(6)[None] < torch.tensor([6, 5, 1, 3, 4, 6, 2, 3])[:, None]


def ours(correction: Correction) -> CorrectionResult:
    gap, mask = batch()
    return correction(old_logprobs_BT=gap - 1.0, behavior_logprobs_BT=torch.full_like(gap, -1.0), loss_mask_BT=mask)


@pytest.mark.parametrize(
    "correction, level, threshold, normalize",
    [
        (Tis(cap=2.0), "token", 2.0, False),
        (Tis(cap=2.0, normalize=True), "token", 2.0, True),
        (Tis(cap=3.0, level=TisLevel.SEQUENCE), "sequence", 3.0, False),
        (Tis(cap=3.0, level=TisLevel.SEQUENCE, normalize=True), "sequence", 3.0, True),
        (IcePop(low=0.8, high=1.5), "token", "0.8_1.5", False),
        (Mis(low=0.5, high=2.0), "sequence", "0.5_2.0", False),
    ],
)
def test_weights_are_verl_s(
    rollout_correction: Any, correction: Correction, level: str, threshold: float | str, normalize: bool
) -> None:
    gap, mask = batch()
    theirs, _ = rollout_correction.compute_rollout_correction_weights(
        log_ratio=gap,
        response_mask=mask.double(),
        rollout_is=level,
        rollout_is_threshold=threshold,
        rollout_is_batch_normalize=normalize,
    )
    found = ours(correction).weights_BT
    assert theirs.unique().numel() > 4
    torch.testing.assert_close(found, theirs, rtol=1e-7, atol=1e-9)  # verl adds 1e-8 to counts


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize(
    "over, theirs", [("token", "token"), ("sum", "seq_sum"), ("mean", "seq_mean"), ("max", "seq_max")]
)
@pytest.mark.parametrize("bound", [0.001, 0.05, 0.5])
def test_divergences_reject_what_verl_s_do(
    rollout_correction: Any, estimator: str, over: str, theirs: str, bound: float
) -> None:
    correction = Divergence.model_validate({"estimator": estimator, "over": over, "bound": bound})
    assert_rejects(rollout_correction, correction, f"{theirs}_{estimator}", str(bound))


def test_geometric_mean_rejects_what_verl_s_k1_does(rollout_correction: Any) -> None:
    """verl bounds the inverse ratio, so its bounds are the inverses of ours."""
    assert_rejects(rollout_correction, Geometric(low=0.9, high=1.25), "seq_mean_k1", f"{1 / 1.25}_{1 / 0.9}")


def test_products_reject_what_verl_s_k1_does(rollout_correction: Any) -> None:
    correction = Mis(low=0.8, high=1.6, weights=WeightLevel.NONE)
    assert_rejects(rollout_correction, correction, "seq_sum_k1", f"{1 / 1.6}_{1 / 0.8}")


def assert_rejects(rollout_correction: Any, correction: Correction, option: str, threshold: str) -> None:
    """Assert equal masks that reject some trained tokens and keep others."""
    gap, mask = batch()
    theirs, _ = rollout_correction.compute_rollout_rejection_mask(
        log_ratio=gap, response_mask=mask.double(), rollout_rs=option, rollout_rs_threshold=threshold
    )
    assert 0 < int(theirs.sum()) < int(mask.sum())
    assert torch.equal(ours(correction).loss_mask_BT, theirs.bool())
