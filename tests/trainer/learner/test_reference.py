"""The frozen reference gives the log-probs that the policy had when it was kept, bit by bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from envgym.agents.models.weights import widen_head
from envgym.trainer.learner.checkpoint import keep_reference, open_reference
from tests.agents.policies.small_models import llama
from tests.support.logprobs import token_logprobs

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def scored(model: nn.Module) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=torch.ones_like(IDS)).logprobs_BT


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_reference_scores_as_the_model_did(is_wide: bool, tmp_path: Path) -> None:
    model = llama().eval()
    if is_wide:
        widen_head(model)
    before = scored(model)
    keep_reference(model, tmp_path / "reference")
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    with open_reference(model, tmp_path / "reference", torch.device("cpu"))() as reference:
        assert torch.equal(scored(reference), before)
    assert not torch.equal(scored(model), before)
