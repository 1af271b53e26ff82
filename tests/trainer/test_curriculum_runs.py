"""Every curriculum that learns, and every allocator, trains the tiny model."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.graded import train_steps

RUNS: dict[str, dict[str, Any]] = {
    "dump": {"curriculum": {"name": "dump"}},
    "bots": {"curriculum": {"name": "bots"}},
    "ada_rft": {"curriculum": {"name": "ada_rft"}},
    "sgpo": {"curriculum": {"name": "sgpo", "samples": 2}},
    "no_positive_resampling": {"curriculum": {"name": "no_positive_resampling"}},
}
STATELESS = {"no_positive_resampling"}


@pytest.mark.parametrize("name", RUNS)
def test_curriculum_trains(name: str, tmp_path: Path) -> None:
    first, second = train_steps(tmp_path, **RUNS[name])
    assert first["optim/updates"] == second["optim/updates"] == 2.0
    assert first["train/rows"] == 4.0
    assert any(key.startswith("curriculum/") for key in second) == (name not in STATELESS)
