"""The canary: silent while sampler and learner share their weights, and loud for every planted fault."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.transformers import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.errors import PolicyFailure, RunError
from envgym.trainer.batch.rows import TrainRow
from envgym.trainer.checks.weight_canary import NUM_SAMPLES, NUM_TOKENS, ComputeLogprobs, WeightCanary
from envgym.trainer.sections import CanarySettings
from tests.agents.policies.small_models import llama, raw_logprobs

PROMPT = tuple(range(3, 51))


def learner_of(model: PreTrainedModel) -> ComputeLogprobs:
    """Return a learner's scores by plain forward passes."""

    def score(rows: Sequence[TrainRow]) -> list[list[float]]:
        tables = [raw_logprobs(model, row.token_ids) for row in rows]
        return [
            [0.0, *(table[place, token].item() for place, token in enumerate(row.token_ids[1:]))]
            for table, row in zip(tables, rows, strict=True)
        ]

    return score


def update(model: PreTrainedModel, size: float) -> None:
    """Change the weights as training would."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))


class Scene:
    """A learner's model, and a sampler with a copy of it."""

    def __init__(self) -> None:
        self.model = llama().eval()
        self.policy = TransformersPolicy(copy.deepcopy(self.model))
        self.canary = WeightCanary(CanarySettings(), PROMPT)

    def look(self, step: int) -> dict[str, float]:
        return asyncio.run(self.canary.check(self.policy, learner_of(self.model), step=step))


def test_a_sampler_with_the_learners_weights_agrees_after_every_update() -> None:
    scene = Scene()
    assert scene.look(0) == {"canary/gap": pytest.approx(0.0, abs=1e-5)}
    for step, size in enumerate([0.02, 1e-9, 0.01], start=1):
        update(scene.model, size)
        scene.policy.update_weights(merged_weights(scene.model), step)
        found = scene.look(step)
        assert found["canary/gap"] < 1e-5
        assert (found["canary/moved"] > 1e-3) == (size > 1e-3)


def test_a_skipped_sync_stops_the_run() -> None:
    scene = Scene()
    scene.look(0)
    update(scene.model, 0.001)
    with pytest.raises(RunError, match=r"must move with the learner's, got no change while .* \(canary, step 1\)"):
        scene.look(1)


class Jumpy(TransformersPolicy):
    """Samples other tokens with every request, as an engine may whose rounding depends on timing."""

    asked = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked += 1
        is_first = request.seed == 0
        return await super().generate(replace(request, seed=1000 * self.asked) if is_first else request)


def test_a_skipped_sync_stops_the_run_also_where_a_sample_changed_by_itself() -> None:
    scene = Scene()
    scene.policy = Jumpy(copy.deepcopy(scene.model))
    scene.look(0)
    update(scene.model, 0.001)
    with pytest.raises(RunError, match=r"must move with the learner's, got no change while .* \(canary, step 1\)"):
        scene.look(1)


def test_small_updates_that_never_arrive_stop_the_run_when_they_have_added_up() -> None:
    scene = Scene()
    scene.look(0)
    steps = 0
    with pytest.raises(RunError, match="must move with the learner's"):  # noqa: PT012  # which look it is, is asked below
        for _ in range(40):
            update(scene.model, 2e-5)
            steps += 1
            scene.look(steps)
    assert 1 < steps < 40


@pytest.mark.parametrize("applied", [True, False])
def test_adapters_that_are_not_applied_stop_the_run(applied: bool) -> None:
    peft = pytest.importorskip("peft")
    scene = Scene()
    base = dict(merged_weights(scene.model))
    scene.model = peft.get_peft_model(scene.model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    scene.look(0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in scene.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    scene.policy.update_weights(merged_weights(scene.model) if applied else base.items(), 1)
    if applied:
        assert scene.look(1)["canary/gap"] < 1e-5
    else:
        with pytest.raises(RunError, match="must move with the learner's, got no change"):
            scene.look(1)


def test_an_update_that_arrived_in_part_stops_the_run() -> None:
    scene = Scene()
    scene.look(0)
    update(scene.model, 0.1)
    arrived = [(name, tensor) for name, tensor in merged_weights(scene.model) if "layers.0" in name]
    scene.policy.update_weights(arrived, 1)
    with pytest.raises(RunError, match=r"must match the learner's within 0.1 nats, got \d\.\d+ .*engines.md"):
        scene.look(1)


class Lukewarm(TransformersPolicy):
    """States log-probs of another distribution than it samples from."""

    async def generate(self, request: GenerateRequest) -> Generation:
        found = await super().generate(request)
        return replace(found, behavior_logprobs=tuple(value / 0.7 for value in found.behavior_logprobs))


def test_log_probs_of_another_distribution_stop_the_run_at_once() -> None:
    scene = Scene()
    scene.policy = Lukewarm(scene.model)
    with pytest.raises(RunError, match="must match the learner's"):
        scene.look(0)


class Dying(TransformersPolicy):
    """Dies the first times that it is asked."""

    deaths = 1

    async def generate(self, request: GenerateRequest) -> Generation:
        self.deaths -= 1
        if self.deaths >= 0:
            raise PolicyFailure("the engine died")
        return await super().generate(request)


def test_an_engine_that_died_is_asked_again_and_not_for_ever() -> None:
    scene = Scene()
    scene.policy = Dying(scene.model)
    assert scene.look(0)["canary/gap"] < 1e-5
    scene.policy.deaths = 2 * NUM_SAMPLES  # every request twice
    with pytest.raises(PolicyFailure, match="the engine died"):
        scene.look(1)


def test_the_samples_differ_and_are_scored_once_a_step_while_they_stay_the_same() -> None:
    scene, scored = Scene(), []

    def score(rows: Sequence[TrainRow]) -> Sequence[Sequence[float]]:
        scored.append([row.token_ids[len(PROMPT) :] for row in rows])
        return learner_of(scene.model)(rows)

    for step in range(2):
        asyncio.run(scene.canary.check(scene.policy, score, step=step))
    first, second = scored
    assert first == second
    assert [len(tokens) for tokens in first] == [NUM_TOKENS] * NUM_SAMPLES
    assert len(set(first)) > 1
    last = scene.canary._last
    assert last is not None
    for logprobs in (last.learner_logprobs, last.policy_logprobs):
        assert [len(sample) for sample in logprobs] == [NUM_TOKENS] * NUM_SAMPLES


def test_the_move_is_that_of_the_samples_that_stayed_and_needs_no_further_scores() -> None:
    scene, scored = Scene(), []

    def score(rows: Sequence[TrainRow]) -> Sequence[Sequence[float]]:
        found = learner_of(scene.model)(rows)
        scored.append({row.token_ids: line for row, line in zip(rows, found, strict=True)})
        return found

    asyncio.run(scene.canary.check(scene.policy, score, step=0))
    update(scene.model, 0.01)
    scene.policy.update_weights(merged_weights(scene.model), 1)
    found = asyncio.run(scene.canary.check(scene.policy, score, step=1))
    before, now = scored
    both = before.keys() & now.keys()
    assert 0 < len(both) < NUM_SAMPLES, "some samples changed, and not all"
    moves = [abs(a - b) for row in both for a, b in zip(before[row][-NUM_TOKENS:], now[row][-NUM_TOKENS:], strict=True)]
    assert found["canary/moved"] == pytest.approx(sum(moves) / len(moves))
    update(scene.model, 1.0)
    scene.policy.update_weights(merged_weights(scene.model), 2)
    scene.canary._settings = CanarySettings(max_gap=10.0)
    assert asyncio.run(scene.canary.check(scene.policy, score, step=2))["canary/moved"] > 0.1
    assert len(scored) == 4, "no sample stayed, so those of the last time were scored too"
