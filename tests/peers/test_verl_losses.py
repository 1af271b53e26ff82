"""Our policy losses, aggregations, KL estimates and value losses equal verl's, with their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envgym.trainer.learner.critic import value_loss
from envgym.trainer.methods.losses import (
    Aggregation,
    Cispo,
    ClipCov,
    DppoKl,
    DppoTv,
    Dro,
    Gmpo,
    Gspo,
    KlCov,
    LossBatch,
    PolicyLoss,
    PpoClip,
    Reinforce,
    Sapo,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
    kl_to_reference,
)
from envgym.trainer.methods.losses.kl import KlEstimator, k1, k2, k3
from tests.support.denominators import denominator_of

pytestmark = pytest.mark.peers

ROWS, WIDTH = 5, 6
MASK = torch.arange(WIDTH)[None] < torch.tensor([6, 3, 1, 5, 0])[:, None]
"""A row of no token at all is the last."""


def noise(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_equal(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """Assert equal sums and equal gradients of two functions at a point."""
    found = []
    for function in (ours, theirs):
        variable = at.clone().requires_grad_()
        value = function(variable).sum()
        value.backward()
        found.append((value.detach(), variable.grad))
    (our_value, our_gradient), (their_value, their_gradient) = found
    assert our_gradient is not None
    assert bool(our_gradient.any())
    torch.testing.assert_close(our_value, their_value, rtol=1e-7, atol=1e-9)  # verl adds 1e-8 to lengths
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-7, atol=1e-9)


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": TokenMean(),
    "token-sum": TokenSum(),
    "seq-mean-token-sum": SeqMeanTokenSum(),
    "seq-mean-token-mean": SeqMeanTokenMean(),
    "seq-mean-token-sum-norm": SeqMeanTokenSumNorm(max_tokens=7),
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregations_are_verl_s(core_algos: Any, name: str) -> None:
    assert_equal(
        lambda losses: AGGREGATIONS[name](losses, MASK, denominator=denominator_of(MASK)),
        lambda losses: core_algos.agg_loss(losses, MASK.double(), name, loss_scale_factor=7),
        noise(0),
    )


@pytest.mark.parametrize("estimator, name", [(k1, "k1"), (k2, "k2"), (k3, "k3")])
def test_kl_estimates_are_verl_s(core_algos: Any, estimator: KlEstimator, name: str) -> None:
    reference = noise(1)
    assert_equal(
        lambda logprobs: kl_to_reference(logprobs, reference, MASK, estimator=estimator),
        lambda logprobs: core_algos.kl_penalty(logprobs, reference, name) * MASK,
        noise(2),
    )


def test_k3_goes_on_where_verl_s_stops_at_ten_nats(core_algos: Any) -> None:
    """Above 10 verl's estimate is constant, so that the worst tokens are not pulled back; ours goes on to d = -20."""
    logprobs, reference = torch.tensor([[-3.0]]), torch.tensor([[0.0]])  # exp(3) - 1 - 3 = 16.0855
    assert core_algos.kl_penalty(logprobs, reference, "k3").item() == 10.0
    found = kl_to_reference(logprobs, reference, torch.ones(1, 1).bool(), estimator=k3)
    assert found.item() == pytest.approx(16.085537, abs=1e-5)


@pytest.mark.parametrize("clip", [0.3, 1e9])
def test_value_losses_are_verl_s(core_algos: Any, clip: float) -> None:
    targets, old = noise(3), noise(4, 0.5)

    def theirs(values: Tensor) -> Tensor:
        loss: Tensor = core_algos.compute_value_loss(values, targets, old, MASK.double(), clip, "token-sum")[0]
        return loss

    assert_equal(lambda values: value_loss(values, targets, old, MASK, clip=clip), theirs, noise(5))


OLD = -noise(6).abs() - 1.5
ADVANTAGES = noise(7)[:, :1].expand(ROWS, WIDTH)
"""One number a row, of both signs."""
THRESHOLDS = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.05, "clip_ratio_c": 1.2}
CLIPS = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}
CASES: dict[str, tuple[PolicyLoss, str, dict[str, Any]]] = {
    "vanilla": (PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=3.0), "token-sum", {"clip_ratio_high": 0.28}),
    "gpg": (Reinforce(), "token-sum", {}),
    "gspo": (Gspo(clip_low=0.1, clip_high=0.2), "seq-mean-token-mean", CLIPS),
    "cispo": (Cispo(clip_low=0.1, clip_high=0.2), "token-mean", CLIPS),
    "sapo": (Sapo(tau_positive=1.5, tau_negative=2.0), "seq-mean-token-mean", {"tau_pos": 1.5, "tau_neg": 2.0}),
    "dppo_tv": (DppoTv(threshold_low=0.03, threshold_high=0.05, cap=1.2), "token-mean", THRESHOLDS),
    "dppo_kl": (DppoKl(threshold_low=0.03, threshold_high=0.05, cap=1.2), "token-mean", THRESHOLDS),
    "dro": (Dro(beta=0.3), "token-mean", {"dro_beta": 0.3}),
    "kl_cov": (KlCov(share=0.4, coef=0.7), "token-mean", {"kl_cov_ratio": 0.4, "ppo_kl_coef": 0.7}),
    # so large a share that all candidates are drawn: the draws themselves are not to be compared
    "clip_cov": (
        ClipCov(share=0.9, low=0.1, high=1.5, clip_low=0.1, clip_high=0.2),
        "token-mean",
        {"clip_cov_ratio": 0.9, "clip_cov_lb": 0.1, "clip_cov_ub": 1.5, **CLIPS},
    ),
}
"""verl's name -> our loss, the aggregation, verl's settings."""


def ours(loss: PolicyLoss, mode: Aggregation, logprobs: Tensor) -> Tensor:
    batch = LossBatch(logprobs_BT=logprobs, old_logprobs_BT=OLD, advantages_BT=ADVANTAGES, loss_mask_BT=MASK)
    return mode(loss(batch).losses_BT, MASK, denominator=denominator_of(MASK))


def theirs(core_algos: Any, name: str, mode: str, config: dict[str, Any], logprobs: Tensor) -> Tensor:
    fields = core_algos.ActorConfig.__dataclass_fields__
    of_loss = {key: value for key, value in config.items() if key not in fields}
    settings = core_algos.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=fields["policy_loss"].default_factory(**of_loss),
        **{key: value for key, value in config.items() if key in fields},
    )
    value: Tensor
    value, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=OLD,
        log_prob=logprobs,
        advantages=ADVANTAGES,
        response_mask=MASK.double(),
        loss_agg_mode=mode,
        config=settings,
    )
    return value


@pytest.mark.parametrize("name", CASES)
def test_policy_losses_are_verl_s(core_algos: Any, name: str) -> None:
    loss, mode, config = CASES[name]
    assert_equal(
        lambda logprobs: ours(loss, AGGREGATIONS[mode], logprobs),
        lambda logprobs: theirs(core_algos, name, mode, config, logprobs),
        OLD + noise(8, 0.4),
    )


def test_gmpo_is_verl_s_but_for_rows_of_no_token(core_algos: Any) -> None:
    """verl counts the empty row in its mean over rows: five instead of four."""
    assert_equal(
        lambda logprobs: ours(Gmpo(clip_low=0.2, clip_high=0.2), SeqMeanTokenMean(), logprobs),
        lambda logprobs: theirs(core_algos, "geo_mean", "unused", {"clip_ratio": 0.2}, logprobs) * ROWS / (ROWS - 1),
        OLD + noise(8, 0.4),
    )
