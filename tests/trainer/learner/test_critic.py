"""The critic: exact values and gradients in packs, REINFORCE at first, and a loss that falls."""

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from envgym.config.plugins import Choice
from envgym.core.trajectory import Group
from envgym.trainer.batch.build import build_batch
from envgym.trainer.batch.rows import TrainRow, ValueTarget
from envgym.trainer.learner.critic import Critic, PaddedValueTargets, ValueHead, supervised_tokens
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.credit.gae import GaeTurn
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.methods.protocols import VALUES, Credit, CriticCredit
from envgym.trainer.metrics.update import UpdateMetrics
from envgym.trainer.models.scores import ScoringModels
from tests.support.credit_trees import chains
from tests.support.differences import slopes_along
from tests.support.example_trees import fork_inside_a_turn
from tests.support.plugins import CREDITS, CRITIC_CREDITS
from tests.trainer.learner.packing.forest import CPU, assert_close, build, random_rows

OBJECTIVE = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
MODEL = build()


def by(learner: Learner) -> ScoringModels:
    return ScoringModels(learner=learner, models={}, temperature=1.0)


def values_of(learner: Learner, rows: Sequence[TrainRow]) -> list[list[float]]:
    return by(learner)(rows, {"policy": ["values"]})["policy", "values"]


def taught(seed: int = 0) -> list[TrainRow]:
    """Return rows that share prefixes, with weights, and value_targets at about half of their tokens."""
    rng = random.Random(seed)

    def value_target() -> ValueTarget | None:
        return ValueTarget(rng.uniform(-1, 1), rng.uniform(-1, 1)) if rng.random() < 0.5 else None

    return [
        replace(
            row, value_targets=tuple(value_target() for _ in row.token_ids), weights=(1 / (1 + number % 2),) * len(row)
        )
        for number, row in enumerate(random_rows(rng))
    ]


def build_critic(model: PreTrainedModel, **settings: object) -> Critic:
    critic = Critic(
        model,
        CriticSettings.model_validate(settings),
        OptimSettings(optimizer=Choice.model_validate({"name": "adamw", "eps": 1e-3})),
        device=CPU,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        critic.head.weight_D.copy_(torch.randn(16, generator=generator, dtype=torch.float64))
        critic.head.bias.fill_(0.3)
    return critic


def total_loss(model: PreTrainedModel, critic: Critic, rows: list[TrainRow], **optim: object) -> Tensor:
    forward = ForwardPass(model, OptimSettings.model_validate(optim), device=CPU)
    value_targets = PaddedValueTargets.of_rows(rows, dtype=torch.float64, device=CPU)
    shared = partial(
        critic.loss, value_targets=value_targets, denominator=supervised_tokens(rows), metrics=UpdateMetrics()
    )
    shares = [shared(forward.hidden_states(batch), batch) for batch in forward.micro_batches(rows, range(len(rows)))]
    return torch.stack(shares).sum()


def weights_of(model: PreTrainedModel, critic: Critic) -> list[Tensor]:
    return [*model.parameters(), *critic.head.parameters()]


def test_packed_values_and_gradients_are_those_of_the_rows() -> None:
    rows, critic = taught(), build_critic(MODEL, detach=False)

    def found(**optim: object) -> tuple[Tensor, Tensor]:
        learner = Learner(MODEL, optim=OptimSettings.model_validate(optim), num_steps=1, device=CPU, critic=critic)
        values = torch.tensor([value for said in values_of(learner, rows) for value in said], dtype=torch.float64)
        loss = total_loss(MODEL, critic, rows, **optim)
        weights = weights_of(MODEL, critic)
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        return values, torch.cat([gradient.flatten() for gradient in gradients])

    values, gradient = found(packing=False)
    assert values.abs().max() > 0.1
    assert gradient.abs().max() > 1e-3
    for tokens in (20, 10_000):
        packed = found(packing=True, micro_batch_tokens=tokens)
        assert_close(packed[0], values)
        assert_close(packed[1], gradient)


def test_loss_is_half_the_squared_error_averaged_over_supervised_tokens() -> None:
    rows, critic = taught(), build_critic(MODEL, coef=0.25)
    said = values_of(Learner(MODEL, optim=OptimSettings(), num_steps=1, device=CPU, critic=critic), rows)
    errors = [
        (row.weights[place], (values[place] - value_target.target) ** 2)
        for row, values in zip(rows, said, strict=True)
        for place, value_target in row.supervised
    ]
    mean = sum(weight * error for weight, error in errors) / sum(weight for weight, _ in errors)
    assert total_loss(MODEL, critic, rows, micro_batch_tokens=20).item() == pytest.approx(0.25 * mean / 2, rel=1e-9)


def test_value_is_of_the_prefix_before_the_token() -> None:
    """Another token in a place changes the values behind it, not the value before it."""
    (row, *_) = (row for row in taught() if len(row) > 6)
    row = replace(row, loss_mask=(False, *(True,) * (len(row) - 1)))
    other = replace(row, token_ids=(*row.token_ids[:4], (row.token_ids[4] + 1) % 29, *row.token_ids[5:]))
    learner = Learner(MODEL, optim=OptimSettings(), num_steps=1, device=CPU, critic=build_critic(MODEL))
    ours, theirs = values_of(learner, [row, other])
    assert ours[:5] == pytest.approx(theirs[:5], abs=1e-12)
    assert all(abs(one - another) > 1e-6 for one, another in zip(ours[5:], theirs[5:], strict=True))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradient_agrees_with_differences(clip: float | None) -> None:
    model = copy.deepcopy(MODEL)
    rows, critic = taught(), build_critic(model, detach=False, clip=clip)
    weights = weights_of(model, critic)
    gradients = torch.autograd.grad(total_loss(model, critic, rows), weights, materialize_grads=True)
    found = slopes_along(lambda: total_loss(model, critic, rows).item(), weights, gradients)
    assert found.by_difference == pytest.approx(found.by_gradient, rel=1e-5)
    assert abs(found.by_gradient) > 1e-3


def after(rows: list[TrainRow], critic: dict[str, object] | None, **optim: object) -> tuple[Tensor, Tensor | None]:
    model = copy.deepcopy(MODEL)
    settings = OptimSettings.model_validate(
        {"lr": 1e-2, "optimizer": {"name": "adamw", "eps": 1e-3}, "grad_clip": 1e9, **optim}
    )
    made = None if critic is None else build_critic(model, **critic)
    Learner(model, optim=settings, num_steps=1, device=CPU, critic=made).train_step(rows, OBJECTIVE, step=0)
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return weights, None if made is None else torch.cat([w.detach().flatten() for w in made.head.parameters()])


def test_update_does_not_depend_on_micro_batches_or_packing() -> None:
    rows = taught()
    policy, head = after(rows, {"detach": False}, minibatches=2, packing=False)
    assert head is not None
    for optim in ({"micro_batch_tokens": 1}, {"micro_batch_tokens": 20}, {}):
        pieces, of_head = after(rows, {"detach": False}, minibatches=2, **optim)
        assert of_head is not None
        assert torch.allclose(pieces, policy, rtol=0, atol=1e-9)
        assert torch.allclose(of_head, head, rtol=0, atol=1e-9)


def test_detached_critic_leaves_the_policy_its_own_update() -> None:
    rows = taught()
    alone, _ = after(rows, None)
    assert torch.equal(after(rows, {"detach": True})[0], alone)
    assert not torch.allclose(after(rows, {"detach": False})[0], alone, atol=1e-4)


def test_fresh_critic_says_zero_and_turn_level_gae_is_then_the_return_to_go() -> None:
    critic = Critic(MODEL, CriticSettings(), OptimSettings(), device=CPU)
    learner = Learner(MODEL, optim=OptimSettings(), num_steps=1, device=CPU, critic=critic)
    group = chains([0.5, 0.0, 1.0], [0.25, 2.0])
    credits, rows = build_batch(
        [group], GaeTurn(discount=0.5, decay=1.0), once=False, scores=[VALUES], compute=by(learner)
    )
    # .5 + .5 (0 + .5 * 1) = .75, 0 + .5 * 1 = .5, 1; .25 + .5 * 2 = 1.25, 2
    assert [credit.advantages for credit in credits] == [(0.0, (0.75,), (0.5,), (1.0,)), (0.0, (1.25,), (2.0,))]
    assert [[value_target for _, value_target in row.supervised] for row in rows] == [
        [ValueTarget(0.0, 0.75), ValueTarget(0.0, 0.5), ValueTarget(0.0, 1.0)],
        [ValueTarget(0.0, 1.25), ValueTarget(0.0, 2.0)],
    ]
    # and the update is that of REINFORCE with these returns: a policy needs no value targets
    assert torch.equal(after(rows, {})[0], after([replace(row, value_targets=()) for row in rows], None)[0])


def test_leaves_that_share_a_turn_hear_one_value_and_teach_their_own_targets() -> None:
    tree = fork_inside_a_turn()
    learner = Learner(MODEL, optim=OptimSettings(), num_steps=1, device=CPU, critic=build_critic(MODEL))
    _, rows = build_batch(
        [Group(key="g", trees=(tree,))], GaeTurn(decay=1.0), once=True, scores=[VALUES], compute=by(learner)
    )
    ((place, won),), ((other_place, lost),) = (row.supervised for row in rows)
    assert place == other_place
    assert won.value == lost.value != 0.0
    assert (won.target, lost.target) == pytest.approx((1.0, 0.0))
    assert supervised_tokens(rows).tokens == 1.0  # once: half of the token in each row


def test_no_episode_asks_nothing() -> None:
    nothing = build_batch([], GaeTurn(), once=False, scores=[VALUES], compute=lambda rows, asked: pytest.fail("asked"))
    assert nothing == ([], [])


def test_first_update_moves_no_value_by_more_than_twice_the_rate() -> None:
    """Whatever the width: each weight moves by at most the rate, and the normed state's mean size is at most 1."""
    for width in (4, 4096):
        head = ValueHead(width, dtype=torch.float64, device=CPU)
        optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.0)
        hidden_SD = 50 * torch.randn((3, width), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert not head(hidden_SD).any()
        (head(hidden_SD) - 1.0).square().sum().backward()
        optimizer.step()
        moved_S = head(hidden_SD)
        assert ((moved_S > 0.1) & (moved_S <= 0.2)).all()


def test_value_loss_on_a_fixed_batch_falls_and_the_variance_is_explained() -> None:
    model = copy.deepcopy(MODEL)
    critic = Critic(model, CriticSettings(lr=0.3), OptimSettings(), device=CPU)
    learner = Learner(model, optim=OptimSettings(lr=1e-6), num_steps=60, device=CPU, critic=critic)
    groups = [chains([0.5, 0.0, 1.0], [0.25, 2.0])]
    found = []
    for step in range(60):
        _, rows = build_batch(groups, GaeTurn(decay=1.0), once=False, scores=[VALUES], compute=by(learner))
        found.append(learner.train_step(rows, OBJECTIVE, step=step))
    # targets 1.5, 1, 1 and 2.25, 2 have variance .26; the first two prefixes are the same in both episodes, so that
    # (2 * .375^2 + 2 * .5^2) / 5 = .15625 of it stays: no critic has a loss below .078 or explains more than .4
    assert found[0]["critic/value"] == 0.0
    assert found[0]["critic/target"] == pytest.approx(1.55)
    assert found[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-12)
    assert found[0]["loss/value"] == pytest.approx(1.33125)  # (1.5^2 + 1 + 1 + 2.25^2 + 2^2) / 5 / 2
    assert found[-1]["loss/value"] == pytest.approx(0.078125, rel=0.1)
    assert found[-1]["critic/explained_variance"] == pytest.approx(1 - 0.15625 / 0.26, abs=0.02)
    assert found[-1]["critic/value"] == pytest.approx(1.55, abs=0.1)


def test_explained_variance_by_hand() -> None:
    row = taught()[0]
    value_targets = tuple(
        ValueTarget(value, target) for value, target in ((9.0, 9.0), (1.0, 0.0), (1.0, 2.0), (2.0, 4.0))
    )
    rows = [
        replace(
            row,
            token_ids=(1,) * 4,
            loss_mask=(False, True, True, True),
            weights=(1.0,) * 4,
            value_targets=value_targets,
        )
    ]
    # the first token is not trained; targets 0, 2, 4 have variance 8/3, errors -1, 1, 2 (mean 2/3) have 2 - 4/9 = 14/9
    assert PaddedValueTargets.of_rows(rows, dtype=torch.float64, device=CPU).metrics() == pytest.approx(
        {"critic/value": 4 / 3, "critic/target": 2.0, "critic/explained_variance": 1 - (14 / 9) / (8 / 3)}
    )


def test_only_methods_of_a_critic_need_one() -> None:
    assert set(CRITIC_CREDITS) == {"rest_mcts", "agent_prm", "gae_turn", "gae_token", "gae_bilevel", "planned_gae"}
    assert not any(isinstance(build(), CriticCredit) for build in CREDITS.values())
    assert not any(isinstance(build(), Credit) for build in CRITIC_CREDITS.values())
