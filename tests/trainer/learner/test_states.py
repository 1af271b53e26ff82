"""Hidden states in an objective: which rows show them, their exact gradient, and nothing where no term reads them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, islice

import pytest
import torch
from torch import Tensor, nn

from envgym.errors import UnknownName
from envgym.trainer.batch.rows import TrainRow, first_states, train_rows
from envgym.trainer.learner.causal_lm import hidden_states
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Term
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.losses import LossBatch, TokenLoss
from envgym.trainer.methods.losses.contrastive import Contrastive
from envgym.trainer.methods.schedules import Constant
from tests.trainer.learner.packing.forest import gradients, group
from tests.trainer.learner.test_learner import CPU, build_model, objective
from tests.trainer.learner.test_terms import gradient, plain

XML, PROSE = (20, 21, 22), (19, 3)
WAYS = [
    pytest.param({"packing": packing, "micro_batch_tokens": size}, id=f"{'packed' if packing else 'padded'}-{size}")
    for packing in (True, False)
    for size in (24, 10_000)
]


def rows_of(seed: int = 5) -> list[TrainRow]:
    """Return two rows of each of two search trees of three tasks, whose first contexts are known in two other words."""
    rng, rows = random.Random(seed), list[TrainRow]()
    for number, name in enumerate("abc"):
        grown = group(rng, name=name)
        prompts = {"xml": (*XML, number), "prose": (*PROSE, number, number)}
        grown = replace(grown, trees=tuple(replace(tree, prompts=prompts) for tree in grown.trees))
        for tree, of_tree in groupby(train_rows(Grpo()(grown), once=False), key=lambda row: row.id.tree):
            for row in islice(of_tree, 2):
                row_id = replace(row.id, tree=2 * number + tree, group=number, task=number)
                rows.append(replace(row, id=row_id, token_ids=tuple(token % 23 for token in row.token_ids)))
    return rows


def hidden(model: nn.Module, token_ids: Sequence[int]) -> Tensor:
    return hidden_states(model, input_ids_BT=torch.tensor([token_ids]))[0, -1]


def contexts(row: TrainRow) -> dict[str | None, tuple[int, ...]]:
    """Return what a row's first trained token follows: as it was sampled, and under each prompt."""
    assert row.id.row is not None
    start, end = row.id.row.nodes.count(0), row.loss_mask.index(True)
    before = [(None, row.token_ids[:start]), *row.id.prompts.items()]
    return {name: (*ids, *row.token_ids[start:end]) for name, ids in before}


def dense_contrastive(model: nn.Module, rows: Sequence[TrainRow], margin: float) -> Tensor:
    """Return the sum over trained tokens, written out."""
    first = {row.id.tree: row for row in reversed(rows)}
    unit = {
        (tree, name): nn.functional.normalize(hidden(model, ids), dim=0)
        for tree, row in first.items()
        for name, ids in contexts(row).items()
    }
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        z, tree = unit[row.id.tree, None], row.id.tree
        for name in ("xml", "prose"):
            same = (z - unit[tree, name]).square().sum()
            others = [(z - unit[n, name]).square().sum() for n, other in first.items() if other.id.task != row.id.task]
            hinges = torch.stack([(same - other + margin).clamp(min=0.0) for other in others])
            total = total + hinges.mean() / 2 * row.trained_weight
    return total


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Compare gradients by the weights of the body; the head, whose weights come last, reads states alone."""
    num_body = sum(weight.numel() for weight in build_model().model.parameters())
    assert expected[:num_body].abs().max() > 0.1
    torch.testing.assert_close(found[:num_body], expected[:num_body], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optim", WAYS)
def test_gradient_through_states_is_that_of_the_whole_update(optim: dict[str, int]) -> None:
    rows, model = rows_of(), build_model()
    assert len({row.id.tree for row in rows}) == 6
    expected = gradients(model, dense_contrastive(model, rows, margin=0.8))
    loss = Contrastive(prompts=("xml", "prose"), margin=0.8)
    assert_equal(gradient(rows, plain(loss), **optim), expected)
    alone = objective("token-sum")
    term = Term(name="states", loss=loss, coef=Constant(value=2.0), aggregation=alone.aggregation)
    beside = replace(alone, further=(term,))
    assert_equal(gradient(rows, beside, **optim) - gradient(rows, alone, **optim), 2.0 * expected)


class SquaredState:
    """The squared length of each row's own state, on its first trained token: it couples nothing."""

    state_prompts: tuple[str, ...] = ()

    def __call__(self, batch: LossBatch) -> TokenLoss:
        first_BT = batch.loss_mask_BT & (batch.loss_mask_BT.cumsum(-1) == 1)
        return TokenLoss(losses_BT=torch.where(first_BT, batch.states.square().sum(-1, keepdim=True), 0.0))


@pytest.mark.parametrize("optim", WAYS)
def test_loss_of_single_rows_may_read_their_states(optim: dict[str, int]) -> None:
    rows, model = rows_of(), build_model()
    squares = [hidden(model, contexts(row)[None]).square().sum() for row in rows]
    expected = gradients(model, torch.stack(squares).sum())
    assert_equal(gradient(rows, plain(SquaredState()), **optim), expected)


def test_first_states_are_rows_of_their_own_that_train_nothing() -> None:
    rows = rows_of()
    shown = first_states(rows, ("prose", "xml"))
    assert [(row.id.tree, row.id.prompt) for row in shown] == [(n, p) for n in range(6) for p in ("prose", "xml")]
    for row in shown:
        of_tree = next(each for each in rows if each.id.tree == row.id.tree)
        context = contexts(of_tree)[row.id.prompt]
        assert row.token_ids == (*context, of_tree.token_ids[of_tree.loss_mask.index(True)])
        assert not any(row.loss_mask)
        assert row.other_tokens == (False,) * len(context) + (True,)
        assert (row.id.group, row.id.task, row.id.row) == (of_tree.id.group, of_tree.id.task, None)
    assert first_states(rows, ()) == []


def test_prompt_that_no_tree_keeps_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"got 'prosa' \(objective\); did you mean prose\?"):
        first_states(rows_of(), ("prosa",))


def test_terms_without_a_coefficient_change_nothing_and_compute_nothing() -> None:
    rows, unused = rows_of(), Term(name="states", loss=Contrastive(prompts=("xml",)), coef=Constant(value=0.0))

    def run(*further: Term) -> tuple[list[int], list[Tensor], dict[str, float]]:
        model, tokens = build_model(), list[int]()
        model.model.register_forward_pre_hook(
            lambda *args: tokens.append(args[2]["input_ids"].numel()), with_kwargs=True
        )
        learner = Learner(model, optim=OptimSettings(lr=0.01), num_steps=9, device=CPU)
        tokens.clear()  # of the probe
        metrics = learner.train_step(rows, replace(objective(), further=further), step=0)
        return tokens, [parameter.detach() for parameter in model.parameters()], metrics

    plain_run, with_unused, with_used = run(), run(unused), run(replace(unused, coef=Constant(value=1.0)))
    assert with_unused[0] == plain_run[0]
    assert all(torch.equal(*pair) for pair in zip(with_unused[1], plain_run[1], strict=True))
    assert with_unused[2] == plain_run[2]
    assert len(with_used[0]) == 3 * len(plain_run[0]), "old log-probs, the gradient by states, the gradient by weights"
    assert with_used[2]["loss/states"] > 0
