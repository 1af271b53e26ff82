"""DPO and step-DPO: published numbers, worked examples, reductions, laws, gradients by differences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envgym.core.trajectory import Group
from envgym.errors import InvalidInput, UnknownName
from envgym.trainer.batch.build import build_batch
from envgym.trainer.batch.rows import MicroBatch, pad
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.losses import LossBatch, TokenSum
from envgym.trainer.methods.losses.dpo import Dpo, PairLoss, StepDpo
from tests.support.credit_trees import BRANCH, branched, chain, chains, group_of
from tests.support.denominators import denominator_of

CPU = torch.device("cpu")


def micro_batch(*groups: Group, once: bool = False) -> MicroBatch:
    rows = build_batch(groups, Grpo(), once=once).rows
    return pad(rows, range(len(rows)), CPU)


def loss_batch(rows: MicroBatch, ratios: Sequence[float] | Tensor, **changes: Tensor | None) -> LossBatch:
    """Return a batch whose trained tokens, row by row, have these log-ratios to every reference."""
    mask_BT = rows.loss_mask_BT
    values = torch.as_tensor(ratios, dtype=torch.float64)
    reference_BT = torch.full(mask_BT.shape, -3.0, dtype=torch.float64)
    logprobs_BT = torch.full_like(reference_BT, math.nan).masked_scatter(mask_BT, values - 3.0)
    fields: dict[str, Tensor | None] = {"behavior_logprobs_BT": reference_BT, **changes}
    return LossBatch(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=reference_BT,
        advantages_BT=torch.zeros_like(reference_BT),
        loss_mask_BT=mask_BT,
        ids=rows.ids,
        scores={"reference": reference_BT},
        **fields,  # type: ignore[arg-type]  # fields by name
    )


def value(loss: PairLoss, batch: LossBatch) -> float:
    losses_BT = loss(batch).losses_BT
    assert torch.all(losses_BT[~batch.loss_mask_BT] == 0)
    return losses_BT.sum().item()


def test_published_vector_of_istar() -> None:
    # rewards beta x log-ratio of four episodes of two turns; the first and the last succeed
    rewards = torch.tensor([0.1, -0.05, 0.05, 0.05, 0.0, -0.1, 0.15, 0.1], dtype=torch.float64)
    rows = micro_batch(chains([0, 1], [0, 0], [0, 0], [0, 1]))
    loss = Dpo(beta=0.05, per="turn", reference="behavior")
    assert value(loss, loss_batch(rows, rewards / 0.05)) == pytest.approx(0.656974, abs=5e-7)


def test_tulu_divides_by_tokens() -> None:
    # chosen: 3 tokens of log-ratio .1, .2, .3, mean .2; rejected: 1 token of -.1; m = 5 (.2 + .1) = 1.5
    rows = micro_batch(group_of(branched("a", (0, BRANCH), (1, BRANCH), (2, 1.0)), branched("b", (0, 0.0))))
    batch = loss_batch(rows, [0.1, 0.2, 0.3, -0.1])
    result = Dpo(beta=5.0, per="token")(batch)
    assert result.losses_BT.sum().item() == pytest.approx(math.log(1 + math.exp(-1.5)))
    assert result.losses_BT[1].abs().sum() == 0  # it lies on the tokens of the preferred one
    assert (result.sums["margin"] / 4).item() == pytest.approx(1.5)
    assert (result.sums["accuracy"] / 4).item() == 1.0
    # the sum: m = 5 (.6 + .1) = 3.5
    assert value(Dpo(beta=5.0), batch) == pytest.approx(math.log(1 + math.exp(-3.5)))


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("loss", [Dpo(beta=1.0), StepDpo(beta=1.0)])
def test_equal_siblings_cost_log_2_whatever_tokens_they_share(loss: PairLoss, once: bool) -> None:
    # 1 is shared by three episodes, 2 by two: with `once` their tokens weigh 1/3 and 1/2 in each row
    tree = branched("t", (0, BRANCH), (1, BRANCH), (2, 1.0), (2, 0.0), (1, 0.0))
    rows = micro_batch(group_of(tree, chain("u", [0.0])), once=once)
    batch = loss_batch(rows, [0.0] * int(rows.loss_mask_BT.sum()), weights_BT=rows.weights_BT.double())
    weights_BT = rows.weights_BT.double()
    objective = TokenSum()(
        loss(batch).losses_BT, rows.loss_mask_BT, weights_BT, denominator=denominator_of(rows.loss_mask_BT)
    )
    assert objective.item() == pytest.approx(math.log(2))


def test_pairs_stay_within_their_group() -> None:
    pairs_of_rewards = {"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [1.0, 1.0]}
    rows = micro_batch(
        *(
            Group(key=key, trees=tuple(chain(f"{key}{number}", [reward]) for number, reward in enumerate(rewards)))
            for key, rewards in pairs_of_rewards.items()
        )
    )
    # only the first group has a pair: m = .1 (.4 + .6)
    found = value(Dpo(), loss_batch(rows, [0.4, -0.6, 5, 5, 7, 7]))
    assert found == pytest.approx(math.log(1 + math.exp(-0.1)))


def test_of_the_extremes_only_best_and_worst_are_a_pair() -> None:
    rows = micro_batch(chains([1.0], [0.5], [0.0]))
    batch = loss_batch(rows, [1.0, 9.0, 2.0])
    assert value(Dpo(beta=1, pairs="extremes"), batch) == pytest.approx(math.log(1 + math.e))  # m = 1 - 2
    assert value(Dpo(beta=1, min_margin=0.6), batch) == pytest.approx(math.log(1 + math.e))


@pytest.mark.parametrize("loss", [Dpo(), StepDpo()])
def test_without_a_pair_loss_and_gradient_are_zero(loss: PairLoss) -> None:
    rows = micro_batch(chains([1.0], [1.0]))
    batch = loss_batch(rows, [1.0, -1.0])
    batch.logprobs_BT.requires_grad_()
    losses_BT = loss(batch).losses_BT
    losses_BT.sum().backward()
    assert losses_BT.abs().sum() == 0
    assert batch.logprobs_BT.grad is not None
    assert batch.logprobs_BT.grad.abs().sum() == 0


def test_a_pair_that_is_told_apart_by_nothing_is_not_told_right() -> None:
    result = Dpo()(loss_batch(micro_batch(chains([1.0], [0.0])), [0.0, 0.0]))
    assert (result.sums["margin"].item(), result.sums["accuracy"].item()) == (0.0, 0.0)


def test_branches_are_compared_by_their_own_tokens() -> None:
    # node 1 is shared; 2 is right and 3 wrong; another tree fails from the start
    rows = micro_batch(group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), branched("B", (0, 0.0))))
    # rows: (1, 2), (1, 3), (1 of B); the shared token has one log-ratio in both rows
    batch = loss_batch(rows, [0.2, 0.5, 0.2, -0.5, -0.4])
    # 1 (worth 1/2) against that of B: .2 + .4; 2 against 3: .5 + .5
    expected = (math.log(1 + math.exp(-0.6)) + math.log(1 + math.exp(-1.0))) / 2
    assert value(StepDpo(beta=1), batch) == pytest.approx(expected)


def with_values(batch: LossBatch, values: Sequence[float]) -> LossBatch:
    given = torch.tensor(values, dtype=torch.float64)
    advantages_BT = torch.zeros_like(batch.advantages_BT).masked_scatter(batch.loss_mask_BT, given)
    return replace(batch, advantages_BT=advantages_BT)


def test_siblings_may_be_ranked_by_what_the_credit_gave_them() -> None:
    rows = micro_batch(group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), branched("B", (0, 0.0))))
    batch = loss_batch(rows, [0.2, 0.5, 0.2, -0.5, -0.4])
    # rows (1, 2), (1, 3), (1 of B): 1 (0.9) still beats that of B (0.3); 3 (0.8) now beats 2 (0.1): -.5 - .5
    scored = with_values(batch, [0.9, 0.1, 0.9, 0.8, 0.3])
    expected = (math.log(1 + math.exp(-0.6)) + math.log(1 + math.exp(1.0))) / 2
    assert value(StepDpo(beta=1, by="advantage"), scored) == pytest.approx(expected)
    # values that are the mean rewards of what goes through give the pairs of the rewards
    same = with_values(batch, [0.5, 1.0, 0.5, 0.0, 0.0])
    assert value(StepDpo(beta=1, by="advantage"), same) == pytest.approx(value(StepDpo(beta=1), batch))
    assert value(StepDpo(by="advantage", min_margin=1.0), scored) == 0.0


def test_a_shared_token_has_the_gradient_of_one() -> None:
    rows = micro_batch(group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), branched("B", (0, 0.0))))
    batch = loss_batch(rows, [0.2, 0.5, 0.2, -0.5, -0.4])
    batch.logprobs_BT.requires_grad_()
    value_of = StepDpo(beta=1)(batch).losses_BT.sum()
    value_of.backward()
    grad_BT = batch.logprobs_BT.grad
    assert grad_BT is not None
    trained = grad_BT[batch.loss_mask_BT].tolist()
    # d/dm of log(1 + e^-m) is -1 / (1 + e^m), halved by two pairs; both rows of the shared token have half of it
    outer, inner = -1 / (1 + math.exp(0.6)) / 2, -1 / (1 + math.exp(1.0)) / 2
    assert trained == pytest.approx([outer / 2, inner, outer / 2, -inner, -outer])
    assert grad_BT[~batch.loss_mask_BT].abs().nan_to_num(9).sum() == 0


REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=5)
RATIOS = st.lists(st.floats(-3, 3), min_size=5, max_size=5)


@given(rewards=REWARDS, ratios=RATIOS)
def test_steps_of_chains_of_one_turn_are_episodes(rewards: list[float], ratios: list[float]) -> None:
    batch = loss_batch(micro_batch(chains(*([reward] for reward in rewards))), ratios[: len(rewards)])
    assert value(StepDpo(), batch) == pytest.approx(value(Dpo(), batch))


@given(rewards=REWARDS, ratios=RATIOS, shift=st.floats(-2, 2))
def test_a_shift_of_all_log_ratios_changes_nothing(rewards: list[float], ratios: list[float], shift: float) -> None:
    rows = micro_batch(chains(*([reward] for reward in rewards)))
    shifted = [ratio + shift for ratio in ratios]
    count = len(rewards)
    assert value(Dpo(), loss_batch(rows, shifted[:count])) == pytest.approx(
        value(Dpo(), loss_batch(rows, ratios[:count])), abs=1e-9
    )


@given(rewards=REWARDS)
def test_at_the_reference_every_pair_has_the_loss_of_a_guess(rewards: list[float]) -> None:
    batch = loss_batch(micro_batch(chains(*([reward] for reward in rewards))), [0.0] * len(rewards))
    expected = math.log(2) if len(set(rewards)) > 1 else 0.0
    assert value(Dpo(reference="old"), batch) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [Dpo(beta=0.7), Dpo(beta=2, per="token"), Dpo(per="turn"), StepDpo(beta=0.5)])
def test_gradient_is_that_of_differences(loss: PairLoss) -> None:
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), branched("B", (0, BRANCH), (1, 0.25)))
    rows = micro_batch(group)
    ratios = torch.tensor([0.2, 0.5, 0.2, -0.5, -0.4, 0.3], dtype=torch.float64)

    def of(values: Tensor) -> Tensor:
        return loss(loss_batch(rows, values)).losses_BT.sum()

    assert torch.autograd.gradcheck(of, (ratios.requires_grad_(),))


@pytest.mark.parametrize("loss", [Dpo(), Dpo(per="token"), Dpo(per="turn"), StepDpo(), StepDpo(by="advantage")])
def test_where_nothing_trains_loss_and_gradient_are_zero(loss: PairLoss) -> None:
    rows = micro_batch(chains([1.0], [0.0]))
    batch = loss_batch(replace(rows, loss_mask_BT=torch.zeros_like(rows.loss_mask_BT)), [])
    batch.logprobs_BT.requires_grad_()
    losses_BT = loss(batch).losses_BT
    losses_BT.sum().backward()
    assert batch.logprobs_BT.grad is not None
    assert losses_BT.abs().sum() + batch.logprobs_BT.grad.abs().sum() == 0


def test_a_step_is_not_compared_with_one_that_does_not_train() -> None:
    rows = micro_batch(chains([1.0], [0.5], [0.0]))
    mask_BT = rows.loss_mask_BT.clone()
    mask_BT[0] = False
    two = loss_batch(replace(rows, loss_mask_BT=mask_BT), [0.3, -0.6])
    assert value(StepDpo(beta=1), two) == pytest.approx(math.log(1 + math.exp(-0.9)))  # the other two are still a pair


@pytest.mark.parametrize("per", ["token", "turn"])
def test_an_episode_without_a_trained_token_has_no_gradient_and_divides_nothing(
    per: Literal["token", "turn"],
) -> None:
    # Three episodes, of which the first trains nothing; of the others m = .1 (.4 / 2 + .6), or over turns .1 (.4 + .6).
    rows = micro_batch(group_of(chain("a", [0.5]), branched("b", (0, BRANCH), (1, 1.0)), chain("c", [0.0])))
    mask_BT = rows.loss_mask_BT.clone()
    mask_BT[0] = False
    batch = loss_batch(replace(rows, loss_mask_BT=mask_BT), [0.1, 0.3, -0.6])
    batch.logprobs_BT.requires_grad_()
    losses_BT = Dpo(per=per)(batch).losses_BT
    margin = 0.1 * ((0.2 if per == "token" else 0.4) + 0.6)
    assert losses_BT.sum().item() == pytest.approx(math.log(1 + math.exp(-margin)))
    losses_BT.sum().backward()
    grad_BT = batch.logprobs_BT.grad
    assert grad_BT is not None
    assert grad_BT[~mask_BT].tolist() == [0.0] * int((~mask_BT).sum())
    # d/dm of log(1 + e^-m) is -1 / (1 + e^m), times beta, over what the episode's sum is divided by
    slope = -0.1 / (1 + math.exp(margin))
    better = slope / (2 if per == "token" else 1)
    assert grad_BT[mask_BT].tolist() == pytest.approx([better, better, -slope])


def test_a_reference_that_is_missing_is_refused() -> None:
    rows = micro_batch(chains([1.0], [0.0]))
    with pytest.raises(InvalidInput, match="behavior_logprobs must be given, got None"):
        Dpo(reference="behavior")(loss_batch(rows, [0.0, 0.0], behavior_logprobs_BT=None))
    batch = loss_batch(rows, [0.0, 0.0])
    del batch.scores["reference"]  # type: ignore[attr-defined]  # a dict here
    with pytest.raises(UnknownName, match="reference"):
        Dpo()(batch)
