"""The objective of an update against sums written out: what weights, rejections and denominators do to the gradient."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from envgym.core.segments import Origin
from envgym.core.tree import Source
from envgym.errors import SettingsError
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective, Term
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import IcePop, Tis, TisLevel, WeightLevel
from envgym.trainer.methods.losses import Denominator, NegativeLogLikelihood, PpoClip
from envgym.trainer.methods.losses.dpo import Dpo, StepDpo
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.methods.schedules import Constant
from tests.trainer.learner.test_learner import CPU, build_model, build_rows, objective

GAPS = (0.3, -0.4, 0.9, 0.0)
"""log pi_old - log pi_behavior of the trained tokens, one after another: ratios 1.35, 0.67, 2.46 and 1."""


def off_policy_rows() -> list[TrainRow]:
    """Rows that were sampled by another policy, which found tokens likelier or less likely than the model does."""
    rows = []
    for row in build_rows(build_model()):
        gaps = iter(GAPS * len(row))
        behavior = tuple(
            x - next(gaps) if t else 0.0 for x, t in zip(row.behavior_logprobs, row.loss_mask, strict=True)
        )
        rows.append(replace(row, behavior_logprobs=behavior))
    return rows


def gradients(rows: Sequence[TrainRow], goal: Objective, **optim: int) -> list[Tensor]:
    """Return the gradient of every update of a step that hardly moves the model."""
    model, seen = build_model(), list[Tensor]()
    settings = OptimSettings.model_validate({"lr": 1e-15, "grad_clip": 1e9, **optim})
    learner = Learner(model, optim=settings, num_steps=10, device=CPU)
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    )
    learner.train_step(rows, goal, step=0)
    return seen


def written_out(rows: Sequence[TrainRow], weigh: Callable[[int, float], float], *, divisor: float) -> Tensor:
    """Return the gradient of - sum of row weight x `weigh(row, gap)` x advantage x log pi / divisor."""
    model, total = build_model(), torch.zeros((), dtype=torch.float64)
    for number, row in enumerate(rows):
        logits = model(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
        gaps = iter(GAPS * len(row))
        for at, trains in enumerate(row.loss_mask):
            if trains:
                weight = row.weights[at] * weigh(number, next(gaps)) * row.advantages[at]
                total = total - weight * logits[at - 1, row.token_ids[at]]
    (total / divisor).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def num_weighted(rows: Sequence[TrainRow]) -> float:
    return sum(w for row in rows for w, trains in zip(row.weights, row.loss_mask, strict=True) if trains)


def close(found: Tensor, expected: Tensor) -> None:
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_truncated_weights_multiply_each_tokens_loss() -> None:
    rows = off_policy_rows()
    (found,) = gradients(rows, replace(objective(), correction=Tis(cap=2.0)))
    close(found, written_out(rows, lambda _, gap: min(math.exp(gap), 2.0), divisor=num_weighted(rows)))


def test_a_rows_weight_multiplies_all_of_its_losses() -> None:
    rows = off_policy_rows()
    sums = [sum(gap for _, gap in zip(range(sum(row.loss_mask)), GAPS * 9, strict=False)) for row in rows]
    (found,) = gradients(rows, replace(objective(), correction=Tis(cap=9.0, level=TisLevel.SEQUENCE)))
    close(found, written_out(rows, lambda row, _: min(math.exp(sums[row]), 9.0), divisor=num_weighted(rows)))


def test_what_is_rejected_adds_nothing_and_goes_on_counting() -> None:
    rows = off_policy_rows()
    (found,) = gradients(rows, replace(objective(), correction=IcePop(low=0.7, high=2.0)))
    # Of the ratios 1.35, 0.67, 2.46 and 1 the second and third leave [0.7, 2].
    kept = {0.3: math.exp(0.3), 0.0: 1.0}
    close(found, written_out(rows, lambda _, gap: kept.get(gap, 0.0), divisor=num_weighted(rows)))


def test_each_minibatch_is_divided_by_its_own_tokens() -> None:
    rows = build_rows(build_model())
    for packed in (True, False):
        first, second = gradients(rows, objective(), minibatches=2, micro_batch_tokens=13, packing=packed)
        for found, part in ((first, rows[::2]), (second, rows[1::2])):
            close(found, written_out(part, lambda *_: 1.0, divisor=num_weighted(part)))


@pytest.mark.parametrize("mode, divisor", [("token-sum", 1.0), ("seq-mean-token-sum", 3.0)])
def test_each_minibatch_is_divided_by_its_own_sequences(mode: str, divisor: float) -> None:
    rows = build_rows(build_model())
    for found, part in zip(gradients(rows, objective(mode), minibatches=2), (rows[::2], rows[1::2]), strict=True):
        close(found, written_out(part, lambda *_: 1.0, divisor=divisor))


def test_a_denominator_counts_what_its_term_reads() -> None:
    one = TrainRow(
        token_ids=(1, 2, 3),
        loss_mask=(False, True, True),
        advantages=(0.0, 1.0, 1.0),
        behavior_logprobs=(0.0, -1.0, -1.0),
        weights=(1.0, 0.5, 0.25),
        episode_share=0.75,
        id=RowId(group=4),
    )
    nothing = replace(one, loss_mask=(False,) * 3, episode_share=0.5)
    rest = replace(one, weights=(1.0,) * 3, episode_share=0.25)
    other = replace(rest, episode_share=1.0, id=RowId(group=5))
    shown = replace(other, id=RowId(group=5, source=Source.DEMONSTRATION))
    rows = [one, nothing, rest, other, shown]
    # Tokens: .5 + .25, then 2 of the episode's second row, then 2 of the other; a row that trains nothing has no share.
    assert objective().denominators(rows) == {
        "policy": Denominator(tokens=4.75, sequences=2.0, groups={4: 2.75, 5: 2.0})
    }
    imitation = Term(name="imitation", loss=NegativeLogLikelihood(), sources=frozenset({Source.DEMONSTRATION}))
    assert imitation.denominator(rows) == Denominator(tokens=2.0, sequences=1.0, groups={5: 2.0})
    assert imitation.denominator(rows[:2]) == Denominator(tokens=0.0, sequences=0.0, groups={})


def test_the_terms_of_an_objective_are_those_with_a_coefficient() -> None:
    assert [term.name for term in objective().terms] == ["policy"]
    goal = objective(kl_coef=0.1, entropy_coef=0.01)
    assert [term.name for term in goal.terms] == ["policy", "kl_reference", "entropy_bonus"]
    assert [term.coef(7) for term in goal.terms] == [1.0, 0.1, 0.01]
    assert [term.is_weighted for term in goal.terms] == [True, False, False]
    assert [term.name for term in goal.without_reference.terms] == ["policy", "entropy_bonus"]
    assert goal.origins == frozenset({Origin.POLICY})
    memory = Term(name="memory", loss=NegativeLogLikelihood(), origins=frozenset({Origin.TOOL}))
    assert replace(goal, further=(memory,)).origins == frozenset({Origin.POLICY, Origin.TOOL})
    assert not goal.is_coupled
    assert not goal.is_bypass


def test_a_ratio_to_the_sampler_is_not_weighed_again() -> None:
    def bypass(correction: Tis | IcePop) -> Objective:
        settings = ObjectiveSettings.model_validate({"old_policy": "rollout"})
        return Objective(loss=PpoClip(), correction=correction, settings=settings, temperature=1.0)

    assert bypass(IcePop(weights=WeightLevel.NONE)).is_bypass
    for twice in (Tis(), IcePop()):
        with pytest.raises(SettingsError, match=r"correction must only reject where objective\.old_policy=rollout"):
            bypass(twice)


def test_the_ratio_that_is_reported_is_that_of_the_new_policy_to_the_old() -> None:
    rows = off_policy_rows()
    settings = ObjectiveSettings.model_validate({"old_policy": "rollout"})
    goal = Objective(
        loss=NegativeLogLikelihood(), correction=IcePop(weights=WeightLevel.NONE, low=0.0, high=math.inf),
        settings=settings, temperature=1.0,
    )  # fmt: skip
    learner = Learner(build_model(), optim=OptimSettings(lr=1e-15), num_steps=10, device=CPU)
    metrics = learner.train_step(rows, goal, step=0)
    gaps = [gap for row in rows for _, gap in zip(range(sum(row.loss_mask)), GAPS * 9, strict=False)]
    # This loss clips nothing, so the learner measures exp(gap) itself.
    assert metrics["ratio/mean"] == pytest.approx(sum(map(math.exp, gaps)) / len(gaps), rel=1e-5)


def test_preferences_need_the_sum_over_tokens() -> None:
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        with pytest.raises(SettingsError, match=r"aggregation must be TokenSum for Dpo, whose scale it decides, got "):
            replace(objective(mode), loss=Dpo())
        term = Term(name="pairs", loss=StepDpo(), aggregation=objective(mode).aggregation)
        with pytest.raises(SettingsError, match=r"aggregation must be TokenSum for StepDpo.*term pairs"):
            replace(objective(), further=(term,))
    replace(objective("token-sum"), loss=Dpo())


def test_a_correction_that_no_loss_takes_part_in_is_refused() -> None:
    pairs = replace(objective("token-sum"), loss=Dpo())
    with pytest.raises(
        SettingsError, match=r"correction must be none with a loss that no correction applies to \(Dpo\)"
    ):
        replace(pairs, correction=Tis())
    policy = replace(objective(), correction=Tis())
    replace(policy, further=(Term(name="pairs", loss=Dpo(), aggregation=objective("token-sum").aggregation),))


def test_no_correction_weighs_or_rejects_tokens_of_preferences() -> None:
    """Beside a policy loss without weight, the gradient of the pairs is as if there were no correction."""
    rows = [replace(row, id=RowId(episode=n, reward=float(n))) for n, row in enumerate(off_policy_rows())]
    pairs = Term(name="pairs", loss=Dpo(reference="old"), aggregation=objective("token-sum").aggregation)
    plain = replace(objective(policy_coef=0.0), policy_coef=Constant(value=0.0), further=(pairs,))
    for correction in (Tis(cap=1.5), IcePop(low=0.9, high=1.1)):
        found = gradients(rows, replace(plain, correction=correction))
        torch.testing.assert_close(found, gradients(rows, plain))
        assert found[0].abs().max() > 0
