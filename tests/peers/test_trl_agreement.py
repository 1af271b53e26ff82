"""Our losses and parameter gradients equal those of TRL's own `GRPOTrainer._compute_loss` on one fixed batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from envgym.trainer.methods.losses import (
    Aggregation,
    Cispo,
    Gspo,
    LossBatch,
    PolicyLoss,
    PpoClip,
    Sapo,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    kl_to_reference,
)
from envgym.trainer.methods.losses.kl import k3
from envgym.trainer.methods.weights.forking_tokens import ENTROPIES, ForkingTokens
from tests.peers.trl_side import COMPLETION, ROWS, TEMPERATURE, Batch, assert_agreement, gradients_of, off_policy, score
from tests.support.denominators import denominator_of
from tests.support.losses import stats_of

pytestmark = pytest.mark.peers

CLIPS = {"epsilon": 0.2, "epsilon_high": 0.28}
PPO = PpoClip(clip_low=0.2, clip_high=0.28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    theirs: Mapping[str, Any]
    """Arguments of `GRPOConfig`."""
    loss: PolicyLoss = PPO
    aggregation: Aggregation = field(default_factory=TokenMean)


CASES: Mapping[str, Case] = {
    "grpo": Case(theirs={"loss_type": "grpo", **CLIPS}, aggregation=SeqMeanTokenMean()),
    "dr_grpo": Case(theirs={"loss_type": "dr_grpo", **CLIPS}, aggregation=SeqMeanTokenSumNorm(max_tokens=COMPLETION)),
    "dapo": Case(theirs={"loss_type": "dapo", **CLIPS}),
    "bnpo": Case(theirs={"loss_type": "bnpo", **CLIPS}),
    "two-sided clip": Case(
        theirs={"loss_type": "dapo", "delta": 1.3, **CLIPS},
        loss=PpoClip(clip_low=0.2, clip_high=0.28, dual_clip=1.3),
    ),
    "gspo": Case(
        theirs={"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.1},
        loss=Gspo(clip_low=0.05, clip_high=0.1),
        aggregation=SeqMeanTokenMean(),
    ),
    "luspo": Case(
        theirs={"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.1},
        loss=Gspo(clip_low=0.05, clip_high=0.1),
        aggregation=SeqMeanTokenSum(),
    ),
    "cispo": Case(theirs={"loss_type": "cispo", "epsilon_high": 1.3}, loss=Cispo(clip_high=0.3)),
    "sapo": Case(
        theirs={"loss_type": "sapo", "sapo_temperature_pos": 1.5, "sapo_temperature_neg": 2.0},
        loss=Sapo(tau_positive=1.5, tau_negative=2.0),
        aggregation=SeqMeanTokenMean(),
    ),
}

BuildTrainer = Callable[..., Any]  # TRL ships no types


@pytest.fixture
def build_trainer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> BuildTrainer:
    """Return a function that makes a real GRPOTrainer around the model; skip where TRL is not installed."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: see constraints/peers.txt")
    datasets = pytest.importorskip("datasets")

    def build(case: Case, *, beta: float = 0.0, micro_batches: int = 1) -> Any:  # TRL ships no types
        config = trl.GRPOConfig(
            output_dir=str(tmp_path / "run"),
            beta=beta,
            use_bias_correction_kl=False,  # the plain k3 term
            temperature=TEMPERATURE,
            num_generations=ROWS,
            per_device_train_batch_size=ROWS // micro_batches,
            gradient_accumulation_steps=micro_batches,
            max_completion_length=COMPLETION,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            **case.theirs,
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["t3 t4"] * ROWS}),
            processing_class=tokenizer,
        )
        trainer.current_gradient_accumulation_steps = micro_batches
        trainer.model.train()
        return trainer

    return build


def _ours(model: LlamaForCausalLM, batch: Batch, case: Case, *, beta: float) -> Tensor:
    logprobs, loss_mask = score(model, batch)
    given = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=batch.old_logprobs,
        advantages_BT=batch.advantages[:, None].expand_as(logprobs),
        loss_mask_BT=loss_mask,
    )
    # The batch must tell the losses apart: tokens clipped on both sides, others not.
    stats = stats_of(PPO(given))
    assert stats.clipped_low.item() > 0
    assert stats.clipped_high.item() > 0
    assert stats.clipped_low.item() + stats.clipped_high.item() < stats.tokens.item()
    losses = case.loss(given).losses_BT
    if beta:
        losses = losses + beta * kl_to_reference(logprobs, batch.reference_logprobs, loss_mask, estimator=k3)
    return case.aggregation(losses, loss_mask, denominator=denominator_of(loss_mask))


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("name", sorted(CASES))
def test_loss_and_gradients_equal_trl_s(
    build_trainer: BuildTrainer, model: LlamaForCausalLM, batch: Batch, name: str, beta: float
) -> None:
    trainer = build_trainer(CASES[name], beta=beta)
    batch = off_policy(model, batch)
    theirs = trainer._compute_loss(trainer.model, batch.part(slice(None), beta=beta))
    theirs.backward()
    their_gradients = gradients_of(model)
    assert_agreement(model, _ours(model, batch, CASES[name], beta=beta), theirs.item(), their_gradients)


# Not "bnpo": TRL divides it by the tokens of each micro-batch, so that its accumulation is another objective.
@pytest.mark.parametrize("name", ["dapo", "dr_grpo", "grpo"])
def test_our_batch_equals_trl_s_accumulated_micro_batches(
    build_trainer: BuildTrainer, model: LlamaForCausalLM, batch: Batch, name: str
) -> None:
    trainer = build_trainer(CASES[name], micro_batches=2)
    batch = off_policy(model, batch)
    theirs = 0.0
    for rows in (slice(0, 2), slice(2, 4)):
        loss = trainer._compute_loss(trainer.model, batch.part(rows, beta=0.0))
        loss.backward()
        theirs += loss.item()
    their_gradients = gradients_of(model)
    assert_agreement(model, _ours(model, batch, CASES[name], beta=0.0), theirs, their_gradients)


def test_forking_tokens_are_trl_s(build_trainer: BuildTrainer, batch: Batch) -> None:
    """TRL interpolates its quantile, which may keep one token less."""
    trained = batch.completion_mask * batch.tool_mask
    entropies = batch.old_logprobs.abs()  # any numbers from 0 on
    theirs = build_trainer(CASES["dapo"]).get_high_entropy_mask(entropies, trained, threshold=0.8)
    given = LossBatch(
        logprobs_BT=batch.old_logprobs,
        old_logprobs_BT=batch.old_logprobs,
        advantages_BT=batch.advantages[:, None].expand_as(entropies),
        loss_mask_BT=trained.bool(),
        scores={ENTROPIES.name: entropies},
    )
    kept = (ForkingTokens(share=0.2)(given) != 0) & trained.bool()
    assert int(kept.sum()) == 3  # of 14: the three from the quantile at place 10.4 on
    assert kept.equal(theirs)
