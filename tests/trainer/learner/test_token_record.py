"""What a train step takes down of its tokens: the learner's numbers before it, and ratios of its last update."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import ENTROPIES, LEARNER_LOGPROBS, RATIOS, TokenRecord
from tests.trainer.learner.test_learner import CPU, build_model, build_rows, objective


def learner_of(model: torch.nn.Module, **optim: object) -> Learner:
    settings = OptimSettings.model_validate({"lr": 0.05, "micro_batch_tokens": 20, **optim})
    return Learner(copy.deepcopy(model), optim=settings, num_steps=4, device=CPU)


def columns(record: TokenRecord, rows: list[TrainRow]) -> dict[str, Tensor]:
    masks = [torch.tensor(row.loss_mask) for row in rows]
    return {
        name: torch.cat([torch.tensor(values)[mask] for values, mask in zip(of_rows, masks, strict=True)])
        for name, of_rows in record.of_rows(rows).items()
    }


def trained(rows: list[TrainRow], numbers_NT: Tensor) -> Tensor:
    return torch.cat([numbers_NT[at, : len(row)][torch.tensor(row.loss_mask)] for at, row in enumerate(rows)]).float()


@pytest.mark.parametrize("packing", [True, False])
def test_logprobs_and_entropies_are_those_before_the_step(packing: bool) -> None:
    model = build_model()
    rows = [replace(row, behavior_logprobs=tuple(x - 0.25 for x in row.behavior_logprobs)) for row in build_rows(model)]
    learner, record = learner_of(model, packing=packing), TokenRecord()
    batches = learner.micro_batches(rows, range(len(rows)))
    before = learner.compute_token_logprobs(rows, batches, 1.0)
    assert before.entropies_BT is not None
    learner.train_step(rows, objective(), step=0, record=record)
    found = columns(record, rows)
    assert torch.allclose(found[LEARNER_LOGPROBS], trained(rows, before.logprobs_BT), atol=1e-6)
    assert torch.allclose(found[ENTROPIES], trained(rows, before.entropies_BT), atol=1e-6)
    assert torch.equal(found[RATIOS], torch.ones_like(found[RATIOS]))  # a single update


def test_ratios_are_those_at_the_last_update() -> None:
    model = build_model()
    rows = build_rows(model)
    once, twice, record = learner_of(model), learner_of(model, epochs=2), TokenRecord()
    before = once.compute_logprobs(rows, 1.0)
    once.train_step(rows, objective(), step=0)
    expected = (once.compute_logprobs(rows, 1.0) - before).exp()
    twice.train_step(rows, objective(), step=0, record=record)
    found = columns(record, rows)
    assert torch.allclose(found[RATIOS], trained(rows, expected), rtol=1e-5)
    assert (found[RATIOS] - 1).abs().max() > 0.01  # the first update moved the policy
    assert torch.allclose(found[LEARNER_LOGPROBS], trained(rows, before), atol=1e-6)


def test_where_the_sampler_is_the_old_policy_its_ratio_is_that_to_the_sampler() -> None:
    model = build_model()
    rows = [replace(row, behavior_logprobs=tuple(x - 0.25 for x in row.behavior_logprobs)) for row in build_rows(model)]
    learner, record = learner_of(model), TokenRecord()
    before = learner.compute_logprobs(rows, 1.0)
    bypass = objective(old_policy="rollout")
    assert bypass.is_bypass
    learner.train_step(rows, bypass, step=0, record=record)
    found = columns(record, rows)
    assert torch.allclose(found[LEARNER_LOGPROBS], trained(rows, before), atol=1e-6)
    assert torch.allclose(found[RATIOS], torch.full_like(found[RATIOS], 0.25).exp(), rtol=1e-5)


def test_recording_changes_no_weight() -> None:
    model = build_model()
    rows = build_rows(model)
    with_record, without = learner_of(model, epochs=2), learner_of(model, epochs=2)
    with_record.train_step(rows, objective(), step=0, record=TokenRecord())
    without.train_step(rows, objective(), step=0)
    pairs = zip(with_record.parameters, without.parameters, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
