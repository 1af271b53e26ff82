"""Objectives of several terms: each reads its own tokens, and rows may be coupled without being held together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Row
from envgym.core.tree import Source
from envgym.trainer.batch.rows import TrainRow, pad
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective, Term
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.learner.train_step import minibatches
from envgym.trainer.methods.corrections import Tis
from envgym.trainer.methods.losses import LossBatch, NegativeLogLikelihood, PpoClip, PromptMean, TokenLoss
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.methods.schedules import Linear
from tests.trainer.learner.test_learner import CPU, build_model, build_rows, objective, weights_after

DEMONSTRATED = Term(name="imitation", loss=NegativeLogLikelihood(), sources=frozenset({Source.DEMONSTRATION}))


class CoupledPpo(PpoClip):
    """PPO that asks for all rows, though it needs none but its own."""

    scope: ClassVar[str] = "update"


class SquaredMean:
    """The square of the mean log-prob over all rows: no row's gradient is known without the others."""

    scope: ClassVar[str] = "update"

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        square = (torch.where(mask_BT, batch.logprobs_BT, 0.0).sum() / mask_BT.sum()).square()
        first_BT = mask_BT & (mask_BT.flatten().cumsum(0) == 1).view(mask_BT.shape)
        return TokenLoss(losses_BT=torch.where(first_BT, square, 0.0))


def gradient(rows: Sequence[TrainRow], goal: Objective, **optim: int) -> Tensor:
    model = build_model()
    learner = Learner(model, optim=OptimSettings.model_validate({"grad_clip": 1e9, **optim}), num_steps=10, device=CPU)
    seen: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    )
    learner.train_step(rows, goal, step=0)
    return seen[0]


def dense_logprobs(rows: Sequence[TrainRow]) -> tuple[torch.nn.Module, list[Tensor]]:
    """Return a model and the log-probs of all tokens of each row but the first, with gradient."""
    model = build_model()
    found = []
    for row in rows:
        logits = model(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
        found.append(logits[:-1].gather(1, torch.tensor(row.token_ids)[1:, None])[:, 0])
    return model, found


def grad_of(model: torch.nn.Module, loss: Tensor) -> Tensor:
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def plain(loss: object, **changes: object) -> Objective:
    return replace(objective("token-sum"), loss=loss, **changes)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("optim", [{}, {"minibatches": 2, "epochs": 2}])
def test_asking_for_all_rows_changes_nothing(optim: dict[str, float]) -> None:
    model = build_model()
    rows = [replace(row, id=RowId(group=number)) for number, row in enumerate(build_rows(model))]
    one_by_one = replace(objective(), loss=PpoClip(clip_low=0.01, clip_high=0.02))
    together = replace(one_by_one, loss=CoupledPpo(clip_low=0.01, clip_high=0.02))
    expected = weights_after(model, rows, one_by_one, **optim)
    assert torch.allclose(weights_after(model, rows, together, micro_batch_tokens=1, **optim), expected, atol=1e-9)


def test_the_gradient_of_coupled_rows_is_that_of_the_whole_update() -> None:
    rows = [replace(row, weights=(1.0,) * len(row)) for row in build_rows(build_model())]
    model, logprobs = dense_logprobs(rows)
    trained = torch.cat([values[torch.tensor(row.loss_mask[1:])] for row, values in zip(rows, logprobs, strict=True)])
    expected = grad_of(model, trained.mean().square())
    found = gradient(rows, plain(SquaredMean()), micro_batch_tokens=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


class SquaredEntropy(SquaredMean):
    """The square of the mean entropy over all rows, and the square of the mean log-prob where it is asked for."""

    def __init__(self, *, with_logprobs: bool = False) -> None:
        self.with_logprobs = with_logprobs

    def __call__(self, batch: LossBatch) -> TokenLoss:
        mask_BT = batch.loss_mask_BT
        first_BT = mask_BT & (mask_BT.flatten().cumsum(0) == 1).view(mask_BT.shape)
        square = (torch.where(mask_BT, batch.entropies, 0.0).sum() / mask_BT.sum()).square()
        of_logprobs = super().__call__(batch).losses_BT if self.with_logprobs else torch.zeros_like(batch.logprobs_BT)
        return TokenLoss(losses_BT=torch.where(first_BT, square, 0.0) + of_logprobs)


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_the_gradient_of_coupled_entropies_is_that_of_the_whole_update(with_logprobs: bool) -> None:
    rows = [replace(row, weights=(1.0,) * len(row)) for row in build_rows(build_model())]
    model = build_model()
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for row in rows:
        logits = model(torch.tensor([row.token_ids])).logits[0, :-1].log_softmax(-1)
        trains = torch.tensor(row.loss_mask[1:])
        entropies.append(-(logits.exp() * logits).sum(-1)[trains])
        logprobs.append(logits.gather(1, torch.tensor(row.token_ids)[1:, None])[:, 0][trains])
    loss = torch.cat(entropies).mean().square() + with_logprobs * torch.cat(logprobs).mean().square()
    expected = grad_of(model, loss)
    found = gradient(rows, plain(SquaredEntropy(with_logprobs=with_logprobs)), micro_batch_tokens=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


class Nothing(SquaredMean):
    def __call__(self, batch: LossBatch) -> TokenLoss:
        return TokenLoss(losses_BT=torch.zeros_like(batch.logprobs_BT))


def test_coupled_rows_without_anything_to_compare_add_nothing() -> None:
    rows = build_rows(build_model())
    further = (Term(name="nothing", loss=Nothing()),)
    assert torch.equal(gradient(rows, replace(objective(), further=further)), gradient(rows, objective()))


def test_minibatches_of_coupled_rows_hold_whole_groups() -> None:
    rows = [replace(row, id=RowId(group=number // 2)) for number, row in enumerate(build_rows(build_model()))]
    assert minibatches(rows, 2, whole_groups=True) == [[0, 1, 4, 5], [2, 3]]
    assert minibatches(rows, 2, whole_groups=False) == [range(0, 6, 2), range(1, 6, 2)]


def test_a_term_reads_its_own_rows_and_divides_by_their_tokens() -> None:
    """L = PPO over the sampled rows / their tokens + .3 NLL over the demonstrations / theirs, and neither corrected."""
    rows = build_rows(build_model())
    rows = [replace(row, weights=(1.0,) * len(row)) for row in rows]
    unlikely = tuple(-9.0 * trains for trains in rows[1].loss_mask)  # a correction of it would weigh or reject
    rows[1] = replace(rows[1], id=RowId(source=Source.DEMONSTRATION), behavior_logprobs=unlikely)
    imitation = replace(DEMONSTRATED, coef=Linear(start=0.3, end=0.0, steps=9))
    goal = replace(objective(), correction=Tis(), further=(imitation,))
    model, logprobs = dense_logprobs(rows)
    total = torch.zeros((), dtype=torch.float64)
    num_sampled = sum(sum(row.loss_mask) for number, row in enumerate(rows) if number != 1)
    for number, (row, values) in enumerate(zip(rows, logprobs, strict=True)):
        trained = values[torch.tensor(row.loss_mask[1:])].sum()
        if number == 1:
            total = total - 0.3 * trained / sum(row.loss_mask)
        else:
            total = total - (1.5 - number) * trained / num_sampled
    torch.testing.assert_close(gradient(rows, goal, micro_batch_tokens=30), grad_of(model, total), rtol=1e-5, atol=1e-7)


def test_what_a_term_did_is_in_the_metrics() -> None:
    model = build_model()
    rows = build_rows(model)
    rows[1] = replace(rows[1], id=RowId(source=Source.DEMONSTRATION))
    learner = Learner(model, optim=OptimSettings(), num_steps=9, device=CPU)
    coef = Linear(start=1.0, end=0.0, steps=4)
    metrics = learner.train_step(rows, replace(objective(), further=(replace(DEMONSTRATED, coef=coef),)), step=1)
    likelihood = -sum(rows[1].behavior_logprobs) / sum(rows[1].loss_mask)
    assert metrics["loss/imitation"] == pytest.approx(likelihood, abs=1e-6)
    assert metrics["coef/imitation"] == 0.75
    assert "coef/policy" not in metrics
    faded = learner.train_step(rows, replace(objective(), policy_coef=coef, further=(DEMONSTRATED,)), step=3)
    assert (faded["coef/policy"], faded["coef/imitation"]) == (0.25, 1.0)
    assert metrics["train/trained_tokens"] == sum(sum(row.loss_mask) for n, row in enumerate(rows) if n != 1)


def test_a_term_may_read_what_a_tool_said() -> None:
    """Row: prompt 1 2, sampled 3, the tool says 4 5, sampled 6; the term is the likelihood of 4 and 5."""
    parts = [(Origin.PROMPT, (1, 2)), (Origin.POLICY, (3,)), (Origin.TOOL, (4, 5)), (Origin.POLICY, (6,))]
    segments = tuple(
        Segment(origin=origin, token_ids=ids, behavior_logprobs=(-1.0,), policy_version=0)
        if origin is Origin.POLICY
        else Segment(origin=origin, token_ids=ids)
        for origin, ids in parts
    )
    of_tree = Row(
        tree_id="t",
        leaf=1,
        rewrite=None,
        segments=segments,
        token_ids=(1, 2, 3, 4, 5, 6),
        loss_mask=(False, False, True, False, False, True),
        behavior_logprobs=(0.0,) * 6,
        nodes=(0, 0, 1, 1, 1, 2),
        turns=(-1, -1, 0, 0, 0, 1),
    )
    row = TrainRow(
        token_ids=of_tree.token_ids,
        loss_mask=of_tree.loss_mask,
        advantages=(0.0,) * 6,
        behavior_logprobs=(0.0,) * 6,
        weights=(1.0,) * 6,
        id=RowId(row=of_tree, tree=3),
    )
    term = Term(name="memory", loss=NegativeLogLikelihood(), origins=frozenset({Origin.TOOL}))
    row = replace(row, other_tokens=row.tokens_of(term.origins))
    of_both = replace(term, origins=term.origins | {Origin.POLICY}).mask(pad([row], [0], CPU))
    assert of_both.tolist() == [[False, False, True, True, True, True]]
    model, (logprobs,) = dense_logprobs([row])
    expected = grad_of(model, -(logprobs[2] + logprobs[3]) / 2)
    torch.testing.assert_close(gradient([row], replace(objective(), further=(term,))), expected, rtol=1e-5, atol=1e-7)
    ids = pad([row], [0], CPU).ids
    assert ids.segments_BT.tolist() == [[0, 0, 1, 2, 2, 3]]
    assert ids.turns_BT.tolist() == [[-1, -1, 0, 0, 0, 1]]
    assert (ids.nodes_BT - 3 * 2**32).tolist() == [[0, 0, 1, 1, 1, 2]]


def test_the_objective_of_settings_names_each_term_once() -> None:
    term = {"name": "imitation", "loss": "nll", "coef": {"name": "cosine", "peak": 0.5, "valley": 0, "decay": 9}}
    ObjectiveSettings.model_validate({"terms": [term]})
    with pytest.raises(ValueError, match="names of terms must differ, got imitation"):
        ObjectiveSettings.model_validate({"terms": [term, term]})
    with pytest.raises(ValueError, match="names of terms must differ, got policy"):
        ObjectiveSettings.model_validate({"terms": [{**term, "name": "policy"}]})
    with pytest.raises(ValueError, match="origins of a term must be some of POLICY, DEMONSTRATION, TOOL, got INJECTED"):
        ObjectiveSettings.model_validate({"terms": [{**term, "origins": ["INJECTED"]}]})


def test_mean_over_groups_takes_groups_that_a_term_does_not_read() -> None:
    """Each term's mean is over its own groups: of the sampled rows, and the one of the demonstration."""
    rows = [replace(row, id=RowId(group=number // 2)) for number, row in enumerate(build_rows(build_model()))]
    rows[5] = replace(rows[5], id=RowId(group=7, source=Source.DEMONSTRATION))
    imitation = replace(DEMONSTRATED, aggregation=PromptMean())
    found = gradient(rows, plain(PpoClip(), aggregation=PromptMean(), further=(imitation,)))
    sampled = gradient(rows[:5], plain(PpoClip(), aggregation=PromptMean()))
    shown = gradient(rows[5:], plain(PpoClip(), further=(imitation,)))
    torch.testing.assert_close(found, sampled + shown, rtol=1e-5, atol=1e-7)
