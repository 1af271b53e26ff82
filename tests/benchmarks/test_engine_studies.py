"""Every arm of the study of staleness is a run that envgym accepts."""

from pathlib import Path

import pytest

from benchmarks.engine_studies import ARMS, CORRECTIONS, Arm
from envgym.trainer.method import build_method
from tests.support.tiny_runs import tiny_settings


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.label)
def test_every_arm_is_accepted(arm: Arm, tmp_path: Path) -> None:
    rollout = {"groups": 2, "group_size": 2, "staleness": arm.staleness}
    settings = tiny_settings(tmp_path, rollout=rollout, correction={"name": CORRECTIONS[arm.correction]})
    assert build_method(settings).objective.correction.only_masks == (arm.correction == "none")
