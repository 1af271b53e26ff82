"""KL estimators: golden values, what their means and their gradients are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.trainer.methods.losses.kl import KlEstimator, k1, k2, k3, kl_to_reference
from tests.support.differences import central_difference

LOG_RATIO = torch.tensor([[0.5, -0.2, 0.0], [-0.4, 0.1, -2.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()


def _distributions() -> tuple[Tensor, Tensor]:
    """Return policy logits, with gradient, and reference log-probabilities over seven tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, generator=generator).requires_grad_()
    return logits, torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(dim=0)


def _expected_gradient(estimator: KlEstimator) -> Tensor:
    """Return E_π[∇ estimate] by enumeration: what the loss term does to an on-policy batch on average."""
    logits, reference = _distributions()
    logprobs = logits.log_softmax(dim=0)
    (logprobs.detach().exp() * estimator(logprobs - reference)).sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize(
    "estimator, expected",
    [
        (k1, [[0.5, -0.2, 0.0], [-0.4, 0.1, -2.0]]),
        (k2, [[0.125, 0.02, 0.0], [0.08, 0.005, 2.0]]),
        (k3, [[0.106531, 0.021403, 0.0], [0.091825, 0.004837, 4.389056]]),
    ],
)
def test_each_estimator_gives_its_golden_values(estimator: KlEstimator, expected: list[list[float]]) -> None:
    estimates = kl_to_reference(LOG_RATIO - 1, torch.full((2, 3), -1.0), MASK, estimator=estimator)
    torch.testing.assert_close(estimates, torch.tensor(expected), rtol=0, atol=1e-6)


@given(ratio=st.floats(-50, 50))
def test_k2_and_k3_are_never_negative_and_finite(ratio: float) -> None:
    value = torch.tensor([[ratio]], dtype=torch.float64)
    for estimate in (k2(value), k3(value)):
        assert estimate.item() >= 0.0
        assert bool(estimate.isfinite().all())


def test_k1_and_k3_have_the_divergence_as_their_mean() -> None:
    logits, reference = _distributions()
    logprobs = logits.detach().log_softmax(dim=0)
    divergence = torch.nn.functional.kl_div(reference, logprobs, log_target=True, reduction="sum")
    for estimator in (k1, k3):
        torch.testing.assert_close((logprobs.exp() * estimator(logprobs - reference)).sum(), divergence)


def test_as_a_loss_term_k1_constrains_nothing() -> None:
    torch.testing.assert_close(_expected_gradient(k1), torch.zeros(7, dtype=torch.float64))


def test_as_a_loss_term_k2_has_the_gradient_of_the_reverse_divergence() -> None:
    logits, reference = _distributions()
    logprobs = logits.log_softmax(dim=0)
    (logprobs.exp() * (logprobs - reference)).sum().backward()
    torch.testing.assert_close(_expected_gradient(k2), logits.grad)


def test_as_a_loss_term_k3_has_the_gradient_of_the_forward_divergence() -> None:
    logits, reference = _distributions()
    (reference.exp() * (reference - logits.log_softmax(dim=0))).sum().backward()
    torch.testing.assert_close(_expected_gradient(k3), logits.grad)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@given(seed=st.integers(0, 10_000))
def test_the_gradient_equals_central_differences(estimator: KlEstimator, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs, reference = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    mask = torch.rand(3, 4, generator=generator) < 0.7
    variable = logprobs.clone().requires_grad_()
    kl_to_reference(variable, reference, mask, estimator=estimator).sum().backward()
    slopes = central_difference(lambda by: kl_to_reference(logprobs + by, reference, mask, estimator=estimator))
    torch.testing.assert_close(variable.grad, slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_a_masked_nan_reaches_neither_value_nor_gradient(estimator: KlEstimator) -> None:
    logprobs = LOG_RATIO.where(MASK, torch.nan).requires_grad_()
    estimates = kl_to_reference(logprobs, torch.zeros(2, 3).where(MASK, -torch.inf), MASK, estimator=estimator)
    estimates.sum().backward()
    assert estimates[0, 2].item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad[0, 2].item() == 0.0
    assert bool(logprobs.grad.isfinite().all())
