"""Which parts of a run are built, and on which device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envgym.trainer import build
from envgym.trainer.methods.losses.kl_reference import REFERENCE
from tests.support.tiny_runs import tiny_settings

STAGES = {"name": "stages", "stages": [{"after": {"step": 1}, "reset_reference": True}]}


@pytest.mark.parametrize("controllers, device", [([], "cpu"), ([STAGES], "meta")])
def test_whole_model_is_on_the_gpu_of_rank_0_only_if_more_than_a_kl_term_reads_it(
    controllers: list[dict[str, Any]], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device "meta" stands for the rank's GPU."""
    policy = SimpleNamespace(shares_weights=False, check_sampling=lambda sampling: None)
    learner = SimpleNamespace(forward=SimpleNamespace(packs=False))
    monkeypatch.setattr(build, "prepare_device", lambda *_: torch.device("meta"))
    monkeypatch.setattr(build, "build_trained_policy", lambda *_, **__: policy)
    monkeypatch.setattr(build, "_build_learner", lambda *_: learner)
    settings = tiny_settings(tmp_path, objective={"kl_coef": 0.1}, controllers=controllers)
    ranks: Any = object()
    context = build.build_run_context(settings, ranks=ranks)
    assert context.keeps_whole_model
    assert {parameter.device.type for parameter in context.model.parameters()} == {device}
    reference: Any = context.models[REFERENCE]
    assert reference._context.device.type == device
    if device == "cpu":  # weights on "meta" cannot be written
        reference.begin(tmp_path / "reference")
    with reference.open() as module:
        assert {parameter.device.type for parameter in module.parameters()} == {device}
