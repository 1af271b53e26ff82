"""GSPO: published vectors, its levels, and what it is for rows of one token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import InvalidInput
from envgym.trainer.methods.losses import Gspo, LossBatch, PpoClip, SeqMeanTokenMean, SeqMeanTokenSum
from envgym.trainer.methods.losses.levels import Level
from envgym.trainer.methods.row_ids import RowId
from tests.support.losses import batch_of, evaluate, golden_batch, gradient_of, row_of_turns, stats_of


def test_golden_batch_is_clipped_whole() -> None:
    # s = exp((.5 - .2) / 2) > 1.0004 at A = 1; exp((-.4 + .1 - 2) / 3) < .9997 at A = -.5
    value, gradient, result = evaluate(Gspo(), golden_batch(), SeqMeanTokenMean())
    assert value == pytest.approx(-0.250275, abs=1e-7)
    assert gradient == [[0.0] * 3] * 2
    assert (stats_of(result).clipped_high.item(), stats_of(result).clipped_low.item()) == (2, 3)


def test_tokens_may_have_advantages_of_their_own() -> None:
    batch = batch_of(
        [[0.001, -0.0004, 0.0], [-0.002, 0.001, 0.0001]],
        0.0,
        [[1.0, 0.5, 0.0], [-1.0] * 3],
        [[1, 1, 0], [1, 1, 1]],
    )
    value, gradient, _ = evaluate(Gspo(), batch, SeqMeanTokenMean())
    assert value == pytest.approx(0.12473751, abs=1e-8)
    assert gradient[0] == pytest.approx([-0.25007501, -0.12503751, 0.0], abs=1e-8)
    assert gradient[1] == pytest.approx([0.16661667] * 3, abs=1e-8)


def test_luspo_is_its_sum_over_tokens() -> None:
    """Each sequence's loss times its length: (2 * -1.0003 + 3 * .9997) / 2, and not divided by the tokens."""
    batch = batch_of([[0.001, -0.0004, 0.0], [-0.002, 0.001, 0.0001]], 0.0, [1.0, -1.0], [[1, 1, 0], [1, 1, 1]])
    loss = Gspo(clip_low=0.002, clip_high=0.0025)
    value, gradient, _ = evaluate(loss, batch, SeqMeanTokenSum())
    assert value == pytest.approx(0.49925002, abs=1e-8)
    assert gradient[0] == pytest.approx([-1.00030005 / 2] * 2 + [0.0], abs=1e-8)
    assert evaluate(loss, batch)[0] == pytest.approx(0.19970001, abs=1e-8)
    assert evaluate(loss, batch, SeqMeanTokenMean())[0] == pytest.approx(-0.0003, abs=1e-7)


AT2PO = batch_of(
    [[0.004, 0.0, 9.0, 0.002, 0.008, 0.005], [-0.006, -0.004, -0.002, 0.0, 0.0, 0.0]],
    0.0,
    [[0.5, 0.5, 0.0, 1.0, 1.0, 1.0], [-1.0] * 6],
    [[1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]],
    [RowId(row=row_of_turns([0, 0, 0, 1, 1, 1])), RowId(row=row_of_turns([0] * 6))],
)


def test_golden_turns() -> None:
    # s = exp(.002), exp(.005) | exp(-.004); the last two are clipped
    loss = Gspo(level="turn", clip_low=0.003, clip_high=0.004)
    value, gradient, result = evaluate(loss, AT2PO, SeqMeanTokenMean())
    assert value == pytest.approx(0.0971, abs=1e-6)
    assert gradient[0] == pytest.approx([-0.0501001, -0.0501001, 0.0, 0.0, 0.0, 0.0], abs=1e-7)
    assert gradient[1] == [0.0] * 6
    assert (stats_of(result).clipped_high.item(), stats_of(result).clipped_low.item()) == (3, 3)
    # of the whole row it is one ratio, exp(.019 / 5) = 1.003807
    whole = Gspo(clip_low=0.01, clip_high=0.01)(AT2PO).losses_BT
    assert whole[0].tolist() == pytest.approx([-0.5019036, -0.5019036, 0.0, *[-1.003807] * 3], abs=1e-6)


def test_turns_without_an_observation_between_them_stay_apart() -> None:
    """The same tokens twice: two turns of log-ratios .02 and -.02, and one turn in which they cancel."""
    loss = Gspo(level="turn", clip_low=0.01, clip_high=0.01)
    apart, together = (
        batch_of([[0.02, -0.02]], 0.0, [1.0], None, [RowId(row=row_of_turns(turns))]) for turns in ([0, 1], [0, 0])
    )
    assert evaluate(loss, apart)[2].losses_BT.tolist()[0] == pytest.approx([-1.01, -0.98019867])
    assert evaluate(loss, together)[2].losses_BT.tolist() == [[-1.0, -1.0]]


def test_a_trained_token_before_the_first_turn_is_refused() -> None:
    batch = batch_of([[0.0, 0.0]], 0.0, [1.0], None, [RowId(row=row_of_turns([-1, 0]))])
    with pytest.raises(InvalidInput, match="turns must name the turn of every trained token, got -1"):
        Gspo(level="turn")(batch)


@given(seed=st.integers(0, 10_000), level=st.sampled_from(["token", "turn", "sequence"]))
def test_rows_of_one_token_are_ppo_s(seed: int, level: Level) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 6, 1, dtype=torch.float64, generator=generator).tolist()
    ids = [RowId(row=row_of_turns([0]))] * 6
    batch = batch_of(values[0], values[1], [row[0] for row in values[2]], None, ids)
    _assert_equal(Gspo(level=level, clip_low=0.3, clip_high=0.4), batch)


@given(seed=st.integers(0, 10_000))
def test_tokens_as_their_own_level_are_ppo_s(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old, advantages = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator).tolist()
    _assert_equal(Gspo(level="token", clip_low=0.3, clip_high=0.4), batch_of(new, old, advantages))


def _assert_equal(loss: Gspo, batch: LossBatch) -> None:
    ppo = PpoClip(clip_low=0.3, clip_high=0.4)
    torch.testing.assert_close(loss(batch).losses_BT, ppo(batch).losses_BT)
    torch.testing.assert_close(gradient_of(loss, batch), gradient_of(ppo, batch))


def test_its_gradient_is_that_of_the_sequence_s_ratio() -> None:
    """-A s, with s = exp(mean of log-ratios) differentiated as it stands."""
    batch = batch_of([[0.1, -0.3, 0.4], [0.2, 0.1, 0.0]], 0.0, [2.0, -1.0], [[1, 1, 1], [1, 1, 0]])
    logprobs = batch.logprobs_BT.clone().requires_grad_()
    means = torch.stack([logprobs[0].mean(), logprobs[1, :2].mean()])
    (-torch.tensor([2.0, -1.0], dtype=torch.float64) * means.exp()).mean().backward()
    assert logprobs.grad is not None
    value, gradient, _ = evaluate(Gspo(clip_low=0.9, clip_high=0.9), batch, SeqMeanTokenMean())
    assert gradient == [pytest.approx(row) for row in logprobs.grad.tolist()]
    assert value == pytest.approx((-2 * means[0].exp() + means[1].exp()).item() / 2)
