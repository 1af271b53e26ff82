"""Our DPO and its parameter gradients equal those of TRL's own `DPOTrainer._compute_loss` on one fixed batch."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from envgym.trainer.methods.losses import LossBatch, TokenSum
from envgym.trainer.methods.losses.dpo import Dpo
from envgym.trainer.methods.row_ids import RowId, RowIds
from tests.peers.trl_side import COMPLETION, Batch, assert_agreement, gradients_of, off_policy, score
from tests.support.denominators import denominator_of

pytestmark = pytest.mark.peers

IDS = RowIds(
    ids=[RowId(episode=n, group=n % 2, reward=reward) for n, reward in enumerate([1.0, 1.0, 0.0, 0.0])],
    length=COMPLETION,
)
"""Two pairs, in TRL's order: the two that are preferred, then the two that are not."""


@pytest.mark.parametrize("loss_type, loss", [("sigmoid", Dpo(beta=0.3)), ("sigmoid_norm", Dpo(beta=0.3, per="token"))])
def test_loss_and_gradients_equal_trl_s(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    batch: Batch,
    tmp_path: Path,
    loss_type: str,
    loss: Dpo,
) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed: see constraints/peers.txt")
    datasets = pytest.importorskip("datasets")
    config = trl.DPOConfig(
        output_dir=str(tmp_path / "run"),
        loss_type=loss_type,
        beta=loss.beta,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
    )
    example = {"prompt": "t3 t4", "chosen": "t5", "rejected": "t6"}
    trainer = trl.DPOTrainer(
        model=model,
        args=config,
        train_dataset=datasets.Dataset.from_list([example] * 4),
        processing_class=tokenizer,
    )
    trainer.model.train()
    batch = off_policy(model, batch)
    trained = batch.completion_mask * batch.tool_mask
    references = (batch.reference_logprobs * trained).sum(dim=1)
    trainer.precompute_ref_logps = True  # so that both sides subtract the same numbers
    theirs = trainer._compute_loss(
        trainer.model,
        {
            "input_ids": torch.cat([batch.prompt_ids, batch.completion_ids], dim=1),
            "attention_mask": torch.cat([batch.prompt_mask, batch.completion_mask], dim=1),
            "completion_mask": torch.cat([torch.zeros_like(batch.prompt_ids), trained], dim=1),
            "ref_chosen_logps": references[:2],
            "ref_rejected_logps": references[2:],
        },
        return_outputs=False,
    )
    theirs.backward()
    their_gradients = gradients_of(model)
    logprobs, loss_mask = score(model, batch, temperature=1.0)
    given = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=batch.old_logprobs,
        advantages_BT=torch.zeros_like(logprobs),
        loss_mask_BT=loss_mask,
        ids=IDS,
        scores={"reference": batch.reference_logprobs},
    )
    ours = TokenSum()(loss(given).losses_BT, loss_mask, denominator=denominator_of(loss_mask))
    assert_agreement(model, ours, theirs.item(), their_gradients)
