"""SIREN: peaks and penalty by hand, its gradient, and H₀, which outlives a checkpoint and a change of settings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from envgym.trainer.method import build_method, changed_method
from envgym.trainer.methods.losses import LossBatch, Siren
from envgym.trainer.settings import TrainSettings, train_settings
from tests.support.differences import partial_differences
from tests.support.losses import batch_of


def batch(entropies: list[list[float]], mask: list[list[int]] | None = None) -> LossBatch:
    zeros = [[0.0] * len(row) for row in entropies]
    given = batch_of(zeros, 0.0, [0.0] * len(entropies), mask)
    return replace(given, entropies_BT=torch.tensor(entropies, dtype=torch.float64))


def gradient(loss: Siren, given: LossBatch) -> Tensor:
    entropies = given.entropies.clone().requires_grad_()
    losses = loss(replace(given, entropies_BT=entropies)).losses_BT
    (losses.sum() / given.loss_mask_BT.sum()).backward()
    assert entropies.grad is not None
    return entropies.grad


PEAKS = batch([[0.1, 0.2, 0.3, 0.4, 0.5]])
"""The quantile of .8 lies at .42: the last token is the only peak."""


def test_penalty_by_hand() -> None:
    """(.5 - .62)² = .0144, times .005: 7.2e-5; the slope 2 (.5 - .62) = -.24, times .005: -.0012."""
    loss = Siren(target=0.62)
    result = loss(PEAKS)
    assert (0.005 * result.losses_BT).tolist() == [pytest.approx([7.2e-5] * 5)]
    assert (0.005 * gradient(loss, PEAKS)).tolist() == [pytest.approx([0.0, 0.0, 0.0, 0.0, -0.0012])]
    assert result.sums["peak_entropy"].item() == pytest.approx(5 * 0.5)


def test_every_response_counts_the_same_and_one_without_a_peak_not_at_all() -> None:
    """Medians 2, 1 (of two) and 5: peaks 3 | 9 and 1.2 | none; H̄ = (3 + 1.2) / 2."""
    given = batch([[1.0, 2.0, 3.0], [0.8, 9.0, 1.2], [5.0, 5.0, 5.0]], [[1, 1, 1], [1, 0, 1], [1, 1, 1]])
    loss = Siren(quantile=0.5, target=0.1)
    assert loss(given).losses_BT[0, 0].item() == pytest.approx(2.0**2)
    # 2 * 2.0 / 2 responses, on the peak of each
    assert gradient(loss, given).tolist() == [[0, 0, pytest.approx(2)], [0, 0, pytest.approx(2)], [0, 0, 0]]


def test_gradient_equals_central_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 6, dtype=torch.float64, generator=generator)
    given, loss = batch(values.tolist(), [[1] * 6, [1] * 4 + [0] * 2, [0] * 6]), Siren(quantile=0.4, target=0.2)
    slopes = partial_differences(lambda moved_BT: loss(replace(given, entropies_BT=moved_BT)).losses_BT[0, 0], values)
    torch.testing.assert_close(gradient(loss, given), slopes, rtol=0, atol=1e-8)


def test_nothing_under_the_mask_is_read() -> None:
    given = batch([[0.1, 0.5, float("nan")]], [[1, 1, 0]])
    loss = Siren(target=0.2)
    assert loss(given).losses_BT.tolist() == [[pytest.approx(0.09)] * 2 + [0.0]]
    assert gradient(loss, given).tolist() == [[0.0, pytest.approx(0.6), 0.0]]
    nothing = batch([[0.1, float("nan")]], [[0, 0]])
    assert loss(nothing).losses_BT.tolist() == [[0.0, 0.0]]


def test_target_is_that_of_the_first_update_and_stays(tmp_path: Path) -> None:
    loss = Siren()
    assert not loss(batch([[0.5]])).losses_BT.any(), "without a peak there is none to remember"
    assert not loss(PEAKS).losses_BT.any()
    later = batch([[0.1, 0.2, 0.3, 0.4, 0.9]])
    assert loss(later).losses_BT[0, 0].item() == pytest.approx(0.16)
    loss.save(tmp_path)
    resumed = Siren()
    resumed.load(tmp_path)
    assert resumed(later).losses_BT[0, 0].item() == pytest.approx(0.16)


def settings(**objective: object) -> TrainSettings:
    term = {"name": "peaks", "loss": "siren", "coef": 0.005}
    return train_settings({"envs": [{"id": "math/arithmetic-v0"}], "objective": {"terms": [term], **objective}})


def test_target_is_part_of_a_checkpoint_and_outlives_a_change_of_settings() -> None:
    before, after = settings(), settings(entropy_coef=0.01)
    method = build_method(before)
    loss = method.objective.further[0].loss
    parts: dict[str, object] = {**method.checkpointed_parts()}
    assert parts["objective-peaks"] is loss
    loss(PEAKS)
    changed = changed_method(method, before, after).objective.further[0].loss
    assert changed is not loss
    assert changed(batch([[0.1, 0.2, 0.3, 0.4, 0.9]])).losses_BT[0, 0].item() == pytest.approx(0.16)
