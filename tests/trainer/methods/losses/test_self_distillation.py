"""Self-distillation: the published vector, its gradient by differences, and its reductions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.errors import UnknownName
from envgym.trainer.methods.losses.base import LossBatch
from envgym.trainer.methods.losses.self_distillation import SelfDistillation
from tests.support.differences import partial_differences

STUDENT, TEACHER, OLD = (torch.tensor([row], dtype=torch.float64).log() for row in (
    [0.5, 0.2, 0.4], [0.6, 0.1, 0.4], [0.45, 0.25, 0.4],
))  # fmt: skip


def losses(student_BT: Tensor, *, teacher_BT: Tensor = TEACHER, old_BT: Tensor = OLD, mask: bool = True) -> Tensor:
    batch = LossBatch(
        logprobs_BT=student_BT,
        old_logprobs_BT=old_BT,
        advantages_BT=torch.full_like(student_BT, 9.0),
        loss_mask_BT=torch.full(student_BT.shape, mask),
        scores={"policy with skill": teacher_BT},
    )
    return SelfDistillation()(batch).losses_BT


def test_published_vector() -> None:
    # (.5/.45) (.6/.5 - 1 + ln(.5/.6)) = .019643, (.2/.25) (.5 - 1 + ln 2) = .154518, 0 where they agree
    found = losses(STUDENT)
    assert found.tolist() == [pytest.approx([0.019643, 0.154518, 0.0], abs=1e-6)]
    assert found.mean().item() == pytest.approx(0.058053, abs=1e-6)


def test_gradient_by_differences() -> None:
    student_BT = STUDENT.clone().requires_grad_()
    losses(student_BT).sum().backward()
    assert student_BT.grad is not None
    slopes = partial_differences(lambda moved_BT: losses(moved_BT).sum(), STUDENT)
    torch.testing.assert_close(student_BT.grad, slopes, rtol=0, atol=1e-8)


@given(st.lists(st.floats(-8, 0), min_size=1, max_size=4), st.floats(-3, 3))
def test_loss_is_never_negative_and_least_where_student_and_teacher_agree(values: list[float], gap: float) -> None:
    student_BT = torch.tensor([values], dtype=torch.float64)
    assert (losses(student_BT, teacher_BT=student_BT - gap, old_BT=student_BT) >= 0).all()
    agreed = student_BT.clone().requires_grad_()
    losses(agreed, teacher_BT=student_BT, old_BT=student_BT).sum().backward()
    assert agreed.grad is not None
    assert agreed.grad.abs().max().item() < 1e-12


def test_masked_tokens_add_nothing_whatever_the_teacher_says() -> None:
    student_BT = STUDENT.clone().requires_grad_()
    found = losses(student_BT, teacher_BT=torch.full_like(TEACHER, torch.nan), mask=False)
    found.sum().backward()
    assert student_BT.grad is not None
    assert not found.any()
    assert not student_BT.grad.any()


def test_teacher_is_asked_for_and_must_have_answered() -> None:
    (request,) = SelfDistillation(prompt="plan", model="teacher").scores
    assert (request.name, request.model, request.prompt) == ("teacher with plan", "teacher", "plan")
    assert (request.quantity, request.without_prompt) == ("logprobs", "own")
    batch = LossBatch(
        logprobs_BT=STUDENT, old_logprobs_BT=OLD, advantages_BT=OLD, loss_mask_BT=torch.ones(1, 3, dtype=torch.bool)
    )
    with pytest.raises(UnknownName, match="score must be a known name, got 'policy with skill'"):
        SelfDistillation()(batch)
