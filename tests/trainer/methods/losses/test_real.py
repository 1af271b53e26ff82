"""REAL: the published group, what counts as right, and its two forms."""

from math import exp, log, log1p

import pytest
import torch

from envgym.trainer.methods.losses import LossBatch, PromptMean, Real, SeqMeanTokenMean
from envgym.trainer.methods.row_ids import RowId
from tests.support.losses import batch_of, evaluate, gradient_of


def rows(logprobs: list[list[float]], ids: list[RowId], mask: list[list[int]] | None = None) -> LossBatch:
    return batch_of(logprobs, -1.0, [0.0] * len(logprobs), mask, ids)


def test_published_group() -> None:
    ids = [RowId(episode=n, reward=reward) for n, reward in enumerate([1.0, 1.0, 0.0, 0.0])]
    batch = rows([[-0.8] * 2, [-1.2] * 2, [-0.9] * 2, [-1.0] * 2], ids)
    value, gradient, result = evaluate(Real(), batch, PromptMean())
    assert value == pytest.approx(2.321068, abs=1e-6)
    expected = [-0.211983, -0.471776, 0.379152, 0.310424]
    assert gradient == [pytest.approx([slope] * 2, abs=1e-6) for slope in expected]
    # the first is above 0 and right, and none of the others is on its side
    assert result.sums["accuracy"].item() == 2


def test_groups_of_one_class_count_nothing_and_go_on_counting_as_groups() -> None:
    """Right at s = .1 / .5, wrong at -.1 / .5; the second group has right ones alone."""
    ids = [RowId(episode=n, group=n // 2, reward=float(n != 1)) for n in range(4)]
    value, gradient, _ = evaluate(Real(), rows([[-0.9], [-1.1], [-0.2], [-3.0]], ids), PromptMean())
    assert value == pytest.approx(log1p(exp(-0.2)))  # (2 log(1 + e^-.2)) / 2 groups
    assert gradient[2:] == [[0.0], [0.0]]


def test_rows_of_an_episode_have_one_score() -> None:
    """Log-ratios .3 | .1, .2 of one episode: their mean is .2, s = .4, however many rows hold them."""
    right = [RowId(episode=0, reward=1.0)] * 2
    split = rows([[-0.7, 0.0], [-0.9, -0.8], [-1.0, -1.0]], [*right, RowId(episode=1)], [[1, 0], [1, 1], [1, 1]])
    assert evaluate(Real(), split, PromptMean())[0] == pytest.approx(log1p(exp(-0.4)) + log(2))


def test_an_episode_without_a_trained_token_is_no_member() -> None:
    ids = [RowId(episode=n, reward=float(n != 1)) for n in range(3)]
    with_it = rows([[-0.9], [-1.1], [-1.0]], ids, [[1], [1], [0]])
    without = rows([[-0.9], [-1.1]], ids[:2])
    assert evaluate(Real(), with_it, PromptMean())[0] == evaluate(Real(), without, PromptMean())[0]


def test_right_is_what_earns_success_at() -> None:
    ids = [RowId(episode=n, reward=reward) for n, reward in enumerate([0.5, 0.4])]
    batch = rows([[-0.9], [-1.1]], ids)
    assert evaluate(Real(), batch, PromptMean())[0] == 0.0, "both are wrong"
    assert evaluate(Real(success_at=0.5), batch, PromptMean())[0] == pytest.approx(2 * log1p(exp(-0.2)))


def test_bce_is_the_cross_entropy_of_each_episode() -> None:
    ids = [RowId(episode=n, reward=float(n == 0)) for n in range(3)]
    value, _, _ = evaluate(Real(form="bce"), rows([[-0.9], [-1.1], [-0.7]], ids), SeqMeanTokenMean())
    assert value == pytest.approx((log1p(exp(-0.2)) + log1p(exp(-0.2)) + log1p(exp(0.6))) / 3)


def test_with_one_of_each_class_both_forms_have_the_same_gradient() -> None:
    batch = rows([[-0.7, -1.4], [-1.3, -0.2]], [RowId(episode=0, reward=1.0), RowId(episode=1)])
    # the group's loss lies on all four tokens, each episode's own on two
    torch.testing.assert_close(gradient_of(Real(), batch), 2 * gradient_of(Real(form="bce"), batch))


def test_no_advantage_is_read() -> None:
    ids = [RowId(episode=n, reward=float(n)) for n in range(2)]
    batch, other = (batch_of([[-0.7], [-1.3]], -1.0, [value, 2.0], None, ids) for value in (0.0, 7.0))
    assert torch.equal(Real()(batch).losses_BT, Real()(other).losses_BT)


def test_scores_far_apart_stay_finite() -> None:
    ids = [RowId(episode=n, reward=float(n)) for n in range(2)]
    gradient = gradient_of(Real(tau=0.01), rows([[14.0], [-16.0]], ids))
    # both are as wrong as can be: s = +-1500, slope 1 / .01 of both logarithms
    assert gradient.tolist() == [[pytest.approx(200.0)], [pytest.approx(-200.0)]]
