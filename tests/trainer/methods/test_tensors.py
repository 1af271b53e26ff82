"""Tensors that would broadcast against the loss mask are refused with a sentence, wherever they enter."""

from math import inf, nan

import pytest
import torch

from envgym.errors import InvalidInput
from envgym.trainer.learner.causal_lm import LmHead
from envgym.trainer.learner.logprobs import chunked_logprobs
from envgym.trainer.methods.losses import Denominator, Entropy, LossBatch, TokenSum, kl_to_reference
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.tensors import check_rows, copy_together, masked_max, masked_min, masked_sum
from tests.support.plugins import CORRECTIONS, LOSSES

FULL = torch.zeros(2, 3)
NARROW = torch.zeros(2, 1)
MASK = torch.ones(2, 3).bool()


def test_tensors_that_travel_together_arrive_as_they_were() -> None:
    tensors = [
        torch.tensor([[1, -2], [3, 2**40]]),
        torch.tensor([True, False, True]),
        torch.zeros(0, dtype=torch.int64),
        torch.tensor(0.5),
        torch.arange(33, dtype=torch.float64).view(3, 11)[:, ::2],  # not contiguous
    ]
    copies = copy_together(tensors, torch.device("cpu"))
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors, strict=True))
    assert [copy.dtype for copy in copies] == [tensor.dtype for tensor in tensors]
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1


@pytest.fixture(autouse=True)
def _without_type_checker(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages", default=None):
        pytest.skip("jaxtyping refuses these calls before the code does")


def test_equal_shapes_pass() -> None:
    check_rows(MASK, {"losses": FULL, "weights": FULL}, where="here")
    check_rows(torch.zeros(0, 3).bool(), {"losses": torch.zeros(0, 3)}, where="here")


def test_a_mask_that_is_not_bool_or_not_of_rank_two_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"loss_mask must be bool \[B, T\], got torch.int64 \[2, 3\] \(here\)"):
        check_rows(MASK.long(), {}, where="here")
    with pytest.raises(InvalidInput, match=r"got torch.bool \[6\]"):
        check_rows(MASK.flatten(), {}, where="here")


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("narrow", ["logprobs", "old_logprobs", "advantages"])
def test_losses_refuse_to_broadcast(name: str, narrow: str) -> None:
    batch = dict.fromkeys(("logprobs_BT", "old_logprobs_BT", "advantages_BT"), FULL) | {f"{narrow}_BT": NARROW}
    with pytest.raises(InvalidInput, match=rf"^{narrow} must match loss_mask \[2, 3\], got \[2, 1\] \(a policy loss\)"):
        LOSSES[name]()(
            LossBatch(
                logprobs_BT=batch["logprobs_BT"],
                old_logprobs_BT=batch["old_logprobs_BT"],
                advantages_BT=batch["advantages_BT"],
                loss_mask_BT=MASK,
            )
        )


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
@pytest.mark.parametrize("narrow", ["old_logprobs", "behavior_logprobs"])
def test_corrections_refuse_to_broadcast(name: str, narrow: str) -> None:
    batch = dict.fromkeys(("old_logprobs_BT", "behavior_logprobs_BT"), FULL) | {f"{narrow}_BT": NARROW}
    with pytest.raises(InvalidInput, match=rf"^{narrow} must match loss_mask \[2, 3\], got \[2, 1\]"):
        CORRECTIONS[name]()(**batch, loss_mask_BT=MASK)


def test_loss_terms_refuse_to_broadcast() -> None:
    with pytest.raises(InvalidInput, match="reference_logprobs must match loss_mask"):
        kl_to_reference(FULL, NARROW, MASK, estimator=k3)
    with pytest.raises(InvalidInput, match="entropies must match loss_mask"):
        Entropy()(
            LossBatch(
                logprobs_BT=FULL, old_logprobs_BT=FULL, advantages_BT=FULL, loss_mask_BT=MASK, entropies_BT=NARROW
            )
        )


def test_aggregation_refuses_to_broadcast() -> None:
    denominator = Denominator(tokens=6.0, sequences=2.0)
    with pytest.raises(InvalidInput, match="losses must match loss_mask"):
        TokenSum()(NARROW, MASK, denominator=denominator)
    with pytest.raises(InvalidInput, match="row_weights must match loss_mask"):
        TokenSum()(FULL, MASK, NARROW, denominator=denominator)


def test_log_probabilities_refuse_targets_of_another_length() -> None:
    head = LmHead(weight_VD=torch.zeros(5, 3))
    with pytest.raises(InvalidInput, match=r"must be \[T, D\] and \[T\], got \[2, 3\] and \[1\]"):
        chunked_logprobs(FULL, head, torch.zeros(1).long())


VALUES = torch.tensor([[1.0, nan], [-2.0, inf]])
ROWS_MASK = torch.tensor([[True, False], [True, False]])


def test_reductions_see_trained_tokens_only() -> None:
    assert masked_sum(VALUES, ROWS_MASK).item() == -1.0
    assert masked_min(VALUES, ROWS_MASK).item() == -2.0
    assert masked_max(VALUES, ROWS_MASK).item() == 1.0


def test_reductions_of_nothing_are_their_identities() -> None:
    for values in (VALUES, torch.zeros(0, 2), torch.zeros(2, 0)):
        nothing = torch.zeros_like(values).bool()
        assert masked_sum(values, nothing).item() == 0.0
        assert masked_min(values, nothing).item() == inf
        assert masked_max(values, nothing).item() == -inf


def test_an_unmasked_nan_stays_visible() -> None:
    everything = torch.ones(2, 2).bool()
    for reduce in (masked_sum, masked_min, masked_max):
        assert reduce(VALUES, everything).isnan().item()
