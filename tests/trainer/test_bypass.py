"""The old policy may be the one that sampled: the ratio then carries what a correction would weigh."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import LlamaForCausalLM

from envgym.config.plugins import Choice
from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.trainer.batch.rows import TrainRow, pad
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective, Term
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.learner.train_step import needs_old_logprobs_pass
from envgym.trainer.methods.corrections import (
    Correction,
    Divergence,
    Geometric,
    IcePop,
    Mis,
    NoCorrection,
    Tis,
    WeightLevel,
)
from envgym.trainer.methods.corrections.rejection import Over
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.methods.losses.aggregate import AGGREGATION
from envgym.trainer.metrics.update import Metrics
from tests.support.differences import central_difference
from tests.trainer.learner.test_learner import CPU, build_model, build_rows

NONE = NoCorrection()


def goal(
    old_policy: str, correction: Correction = NONE, aggregation: str = "token-mean", **settings: object
) -> Objective:
    chosen = ObjectiveSettings.model_validate({"old_policy": old_policy, **settings})
    built = AGGREGATION.build(Choice(name=aggregation))
    return Objective(loss=PpoClip(), correction=correction, aggregation=built, settings=chosen, temperature=1.0)


def learn(
    model: LlamaForCausalLM, rows: list[TrainRow], objective: Objective, **optim: float
) -> tuple[torch.Tensor, Metrics]:
    """Return the last gradient of one train step, and its metrics."""
    trained = copy.deepcopy(model)
    settings = OptimSettings.model_validate({"lr": 1e-3, "grad_clip": 1e9, **optim})
    learner = Learner(trained, optim=settings, num_steps=1, device=CPU, reference=lambda: nullcontext(build_model(7)))
    if not objective.settings.kl_coef:
        learner.reference = None
    seen: list[torch.Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trained.parameters() if p.grad is not None]))
    )
    metrics = learner.train_step(rows, objective, step=0)
    return seen[-1], metrics


def shifted(rows: list[TrainRow], by: float) -> list[TrainRow]:
    """Return the rows of a sampler to which every trained token was less likely by the factor exp(by)."""
    return [
        replace(
            row,
            behavior_logprobs=tuple(
                value - by if trains else 0.0
                for value, trains in zip(row.behavior_logprobs, row.loss_mask, strict=True)
            ),
        )
        for row in rows
    ]


@pytest.mark.parametrize("optim", [{}, {"micro_batch_tokens": 20, "packing": False}])
def test_a_sampler_that_agrees_gives_the_gradient_of_recomputed_log_probs(optim: dict[str, float]) -> None:
    model = build_model()
    rows = build_rows(model)
    recomputed, bypass = (
        learn(model, rows, goal(mode, kl_coef=0.1, entropy_coef=0.01), **optim)[0] for mode in ("recomputed", "rollout")
    )
    assert recomputed.abs().max() > 1e-2
    assert torch.allclose(bypass, recomputed, rtol=1e-5, atol=1e-7)


def test_the_ratio_is_to_the_sampler() -> None:
    """Every token at ratio 1.5: a positive advantage is clipped at 1.2, a negative one is not."""
    model = build_model()
    rows = [
        replace(row, advantages=tuple(sign * trains for trains in row.loss_mask), weights=(1.0,) * len(row))
        for row, sign in zip(shifted(build_rows(model), math.log(1.5)), [1, -1] * 3, strict=True)
    ]
    good, bad = (sum(sum(row.loss_mask) for row in rows[half::2]) for half in (0, 1))
    _, found = learn(model, rows, goal("rollout"))
    assert (found["ratio/min"], found["ratio/max"]) == pytest.approx((1.5, 1.5), rel=1e-5)
    assert found["loss/policy"] == pytest.approx((-1.2 * good + 1.5 * bad) / (good + bad), rel=1e-5)
    assert found["loss/clip_high"] == pytest.approx(good / (good + bad))
    assert found["logprob_gap/mean_abs"] == pytest.approx(math.log(1.5), rel=1e-5)
    _, found = learn(model, rows, goal("recomputed"))
    assert found["ratio/mean"] == 1.0
    assert found["logprob_gap/mean_abs"] == pytest.approx(math.log(1.5), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_differences(seed: int) -> None:
    """Against the written-out objective along one direction; ratios 0.9, of which the clip cuts none."""
    model = build_model()
    rows = shifted(build_rows(model), math.log(0.9))
    gradient, _ = learn(model, rows, goal("rollout"))

    def value(weights: torch.Tensor) -> float:
        moved = copy.deepcopy(model)
        vector_to_parameters(weights, moved.parameters())
        total, weight = 0.0, 0.0
        for row in rows:
            with torch.no_grad():
                table = moved(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
            for place, trains in enumerate(row.loss_mask):
                if trains:
                    log_ratio = table[place - 1, row.token_ids[place]].item() - row.behavior_logprobs[place]
                    total -= row.weights[place] * row.advantages[place] * math.exp(log_ratio)
                    weight += row.weights[place]
        return total / weight

    start = parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(len(start), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    slope = central_difference(lambda by: value(start + by * direction), 1e-5)
    assert (gradient @ direction).item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_tokens_that_no_policy_sampled_have_the_policy_before_the_step() -> None:
    """Their ratio begins at 1: a demonstration's tokens have no log-prob of a sampler (0 stands in its place)."""
    rows = build_rows(build_model())[:3]
    shown = replace(
        rows[1], behavior_logprobs=(0.0,) * len(rows[1]), id=replace(rows[1].id, source=Source.DEMONSTRATION)
    )
    whole = pad([rows[0], shown, rows[2]], range(3), CPU)
    before_BT = torch.where(whole.loss_mask_BT, -2.0, 0.0)
    old = goal("rollout").old_logprobs(before_BT, whole, None, lambda model: before_BT).logprobs_BT
    assert torch.equal(old[[0, 2]], whole.behavior_logprobs_BT[[0, 2]])
    assert torch.equal(old[1], before_BT[1])


@pytest.mark.parametrize(
    "term", [{"sources": frozenset({Source.DEMONSTRATION})}, {"origins": frozenset({Origin.TOOL})}]
)
def test_log_probs_are_computed_before_several_updates_where_a_term_reads_unsampled_tokens(term: Any) -> None:
    alone, beside = goal("rollout"), replace(goal("rollout"), further=(Term(name="shown", loss=PpoClip(), **term),))
    for optim, needs_pass in ((OptimSettings(), False), (OptimSettings(epochs=2), True)):
        assert not needs_old_logprobs_pass(optim, alone)
        assert needs_old_logprobs_pass(optim, beside) == needs_pass


def test_no_pass_is_made_before_the_updates() -> None:
    rows = build_rows(build_model())
    passes: dict[str, int] = {}
    for mode in ("recomputed", "rollout"):
        model = build_model()
        model.model.register_forward_hook(lambda *_, mode=mode: passes.update({mode: passes.get(mode, 0) + 1}))
        learner = Learner(model, optim=OptimSettings(epochs=2, minibatches=2), num_steps=1, device=CPU)
        learner.train_step(rows, goal(mode), step=0)
    assert passes["recomputed"] - passes["rollout"] == 2  # one for the rows of each update


def test_later_updates_reject_by_the_policy_as_it_is_then() -> None:
    """Four updates of a policy that moves fast: at first nothing is rejected, later something is."""
    model = build_model(dtype=torch.float32)
    rows = build_rows(model)
    strict = goal("rollout", Divergence(over=Over.TOKEN, bound=1e-4))
    _, once = learn(model, rows, strict, lr=1e-2)
    _, later = learn(model, rows, strict, lr=1e-2, epochs=4)
    assert once["logprob_gap/rejected"] == 0.0
    assert later["logprob_gap/rejected"] > 0.1


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("old_policy", ["recomputed", "rollout"])
def test_what_is_rejected_trains_nothing_and_counts_in_the_denominator(mode: str, old_policy: str) -> None:
    """Half of each row's tokens are rejected: as if their advantages were 0, and nothing else."""
    model = build_model()
    rows = build_rows(model)
    odd = [tuple(trains and place % 2 == 1 for place, trains in enumerate(row.loss_mask)) for row in rows]
    far = [
        replace(
            row,
            behavior_logprobs=tuple(v - 3.0 * hit for v, hit in zip(row.behavior_logprobs, hits, strict=True)),
        )
        for row, hits in zip(rows, odd, strict=True)
    ]
    still = [
        replace(row, advantages=tuple(0.0 if hit else a for a, hit in zip(row.advantages, hits, strict=True)))
        for row, hits in zip(rows, odd, strict=True)
    ]
    rejecting = IcePop(low=0.9, high=1.1, weights=WeightLevel.NONE)
    found, metrics = learn(model, far, goal(old_policy, rejecting, aggregation=mode))
    expected, _ = learn(model, still, goal("recomputed", aggregation=mode))
    assert metrics["logprob_gap/rejected"] == pytest.approx(
        sum(map(sum, odd)) / sum(sum(row.loss_mask) for row in rows)
    )
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("correction", [Tis(), Mis(), IcePop(), Geometric(weights=WeightLevel.TOKEN)])
def test_a_correction_that_weighs_is_refused(correction: Correction) -> None:
    with pytest.raises(SettingsError, match=r"^correction must only reject where objective.old_policy=rollout.*\.$"):
        goal("rollout", correction)
    goal("recomputed", correction)


@pytest.mark.parametrize("correction", [NONE, Mis(weights=WeightLevel.NONE), Geometric(), Divergence()])
def test_a_correction_that_only_rejects_is_not(correction: Correction) -> None:
    assert goal("rollout", correction).is_bypass
