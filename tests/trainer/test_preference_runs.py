"""Runs that learn from pairs of siblings."""

import math
from pathlib import Path
from typing import Any

import pytest

from envgym.trainer.train import train
from tests.support.tiny_runs import step_metrics, tiny_settings

TREES = {"name": "random_expand", "nodes": 2, "rounds": 1, "keep": 2}


@pytest.mark.parametrize(
    "loss, sections",
    [
        ({"name": "dpo", "reference": "old"}, {}),
        ({"name": "dpo", "beta": 5.0, "per": "token"}, {"objective": {"aggregation": "token-sum"}}),
        ({"name": "step_dpo", "reference": "behavior"}, {"search": TREES}),
    ],
)
def test_preferences_train(loss: dict[str, Any], sections: dict[str, Any], tmp_path: Path) -> None:
    train(tiny_settings(tmp_path / "run", loss=loss, **{"objective": {"aggregation": "token-sum"}, **sections}))
    first, second = step_metrics(tmp_path / "run")
    # nothing has moved away from the reference before the first update: every pair is a guess
    assert first["loss/policy"] * first["train/trained_tokens"] == pytest.approx(math.log(2), rel=1e-3)
    assert first["loss/policy/margin"] == pytest.approx(0, abs=1e-3)
    assert first["optim/grad_norm"] > 0
    assert math.isfinite(second["loss/policy"])
