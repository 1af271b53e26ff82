"""The canary where the learner's weights are in float32 and the sampler's in bfloat16: silent, and loud for faults."""

import asyncio
import copy
from collections.abc import Sequence

import pytest
import torch

from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.errors import RunError
from envgym.trainer.batch.rows import TrainRow
from tests.trainer.checks.test_weight_canary import Scene, learner_of, update


class Mixed(Scene):
    """A learner with weights in float32 whose products are in bfloat16, and a sampler with weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = TransformersPolicy(copy.deepcopy(self.model).bfloat16())

    def send(self, step: int) -> None:
        self.policy.update_weights(merged_weights(self.model, dtype=torch.bfloat16), step)

    def look(self, step: int) -> dict[str, float]:
        def score(rows: Sequence[TrainRow]) -> Sequence[Sequence[float]]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return learner_of(self.model)(rows)

        return asyncio.run(self.canary.check(self.policy, score, step=step))


def test_a_sampler_in_bfloat16_of_a_mixed_learner_raises_no_false_alarm() -> None:
    scene = Mixed()
    gaps = [scene.look(0)["canary/gap"]]
    for step in range(1, 4):
        update(scene.model, 0.01)
        scene.send(step)
        gaps.append(scene.look(step)["canary/gap"])
    assert all(0 < gap < 0.05 for gap in gaps)


def test_a_mixed_learner_whose_update_never_arrives_stops_the_run() -> None:
    scene = Mixed()
    scene.look(0)
    update(scene.model, 0.001)
    with pytest.raises(RunError, match=r"must move with the learner's, got no change while .* \(canary, step 1\)"):
        scene.look(1)


def test_a_mixed_learner_whose_update_arrives_in_part_stops_the_run() -> None:
    scene = Mixed()
    scene.look(0)
    update(scene.model, 0.1)
    weights = merged_weights(scene.model, dtype=torch.bfloat16)
    scene.policy.update_weights([(name, tensor) for name, tensor in weights if "layers.0" in name], 1)
    with pytest.raises(RunError, match=r"must match the learner's within 0.1 nats, got \d\.\d+"):
        scene.look(1)


def test_steps_too_small_for_bfloat16_raise_no_alarm_when_they_arrive() -> None:
    """A step moves few of the sampler's weights, and over many steps all of them."""
    scene = Mixed()
    scene.look(0)
    moved = 0.0
    for step in range(1, 21):
        update(scene.model, 2e-5)
        scene.send(step)
        moved += scene.look(step)["canary/moved"]
    assert moved > 1e-3
