"""The canary: silent while sampler and learner share their weights, and loud for every planted fault."""

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.engine.cached_model import CachedModel
from envgym.agents.policies.engine.packed_linears import can_pack
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Row
from envgym.core.tree import Source
from envgym.errors import PolicyFailure, RunError
from envgym.trainer.batch.rows import TrainRow, scored_row
from envgym.trainer.checks.weight_canary import MAX_TEXT, NUM_SAMPLES, NUM_TOKENS, ComputeLogprobs, WeightCanary
from envgym.trainer.methods.corrections import CorrectionStats, NoCorrection
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.settings import CanarySettings
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


def update(model: PreTrainedModel, size: float, *, part: str = "") -> None:
    """Change the weights whose names hold `part` as training would."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
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


def test_the_samples_differ_and_text_and_samples_are_scored_once_a_check() -> None:
    scene, scored = Scene(), []

    def score(rows: Sequence[TrainRow]) -> Sequence[Sequence[float]]:
        scored.append([row.token_ids for row in rows])
        return learner_of(scene.model)(rows)

    for step in range(2):
        asyncio.run(scene.canary.check(scene.policy, score, step=step))
    first_text, first, second_text, second = scored
    assert first_text == second_text == [PROMPT[:MAX_TEXT]]
    assert first == second
    assert [len(tokens) - len(PROMPT) for tokens in first] == [NUM_TOKENS] * NUM_SAMPLES
    assert len(set(first)) > 1


def test_the_move_is_that_of_the_text_since_the_sampler_last_moved() -> None:
    scene = Scene()
    table = raw_logprobs(scene.model, PROMPT[:MAX_TEXT])
    scene.look(0)
    update(scene.model, 0.01)
    scene.policy.update_weights(merged_weights(scene.model), 1)
    found = scene.look(1)
    moved = (raw_logprobs(scene.model, PROMPT[:MAX_TEXT]) - table)[range(MAX_TEXT - 1), PROMPT[1:MAX_TEXT]]
    assert found["canary/moved"] == pytest.approx(moved.abs().mean().item(), rel=1e-4)
    assert scene.look(2)["canary/moved"] == 0.0


# ---- the samples of a step ------------------------------------------------------------------------------------------


def stats_of(gap: float, num_tokens: int = NUM_SAMPLES * NUM_TOKENS) -> CorrectionStats:
    """Return those of so many samples that all differ by `gap` nats."""
    behavior_BT = torch.zeros(1, num_tokens)
    mask_BT = torch.ones_like(behavior_BT, dtype=torch.bool)
    return (
        NoCorrection()(old_logprobs_BT=behavior_BT + gap, behavior_logprobs_BT=behavior_BT, loss_mask_BT=mask_BT)
    ).stats


class Sampled(Scene):
    """One whose steps have samples that agree, so that no check but the first continues the prompt."""

    def look(self, step: int) -> dict[str, float]:
        if step > 0:
            check = self.canary.samples_check([], Sampling(), step=step)
            assert check is not None
            check(stats_of(0.02))
        return super().look(step)


class Counting(TransformersPolicy):
    """Counts what it samples."""

    sampled = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.sampled += 1
        return await super().generate(request)


def test_samples_that_agree_take_the_place_of_the_prompt_once() -> None:
    scene = Sampled()
    scene.policy = policy = Counting(scene.model)
    scene.look(0)
    assert scene.look(1) == {"canary/gap": pytest.approx(0.02), "canary/moved": 0.0}
    assert policy.sampled == NUM_SAMPLES
    Scene.look(scene, 1)
    assert policy.sampled == 2 * NUM_SAMPLES


def test_samples_that_differ_stop_the_run() -> None:
    check = Scene().canary.samples_check([], Sampling(), step=7)
    assert check is not None
    check(stats_of(0.099))
    with pytest.raises(
        RunError, match=r"must match the learner's within 0.1 nats, got 0.101 \(canary, samples of step 7"
    ):
        check(stats_of(0.101))


def test_the_gap_of_samples_is_that_at_temperature_1() -> None:
    """Logits that differ by e differ by e / 0.5 at temperature 0.5: 0.18 there is 0.09."""
    check = Scene().canary.samples_check([], Sampling(temperature=0.5), step=1)
    assert check is not None
    check(stats_of(0.18))
    with pytest.raises(RunError, match=r"within 0\.1 nats, got 0\.11"):
        check(stats_of(0.22))


def test_too_few_samples_and_numbers_that_are_not_finite_do_not_tell() -> None:
    scene = Scene()
    check = scene.canary.samples_check([], Sampling(), step=1)
    assert check is not None
    check(stats_of(5.0, NUM_SAMPLES * NUM_TOKENS - 1))
    check(stats_of(float("nan")))
    assert scene.look(0)["canary/gap"] < 1e-5


def row_of(version: int, source: Source) -> TrainRow:
    """Return a row with one token that the weights of a version sampled."""
    segments = (
        Segment(origin=Origin.PROMPT, token_ids=(1,)),
        Segment(origin=Origin.POLICY, token_ids=(2,), behavior_logprobs=(-1.0,), policy_version=version),
    )
    row = Row(
        tree_id="tree",
        leaf=1,
        rewrite=None,
        segments=segments,
        token_ids=(1, 2),
        loss_mask=(False, True),
        behavior_logprobs=(0.0, -1.0),
        nodes=(0, 1),
        turns=(-1, 0),
    )
    return replace(scored_row((1, 2), first=1), id=RowId(source=source, row=row))


@pytest.mark.parametrize(
    "version, source, sampling, tells",
    [
        (4, Source.POLICY, Sampling(), True),
        (4, Source.POLICY, Sampling(temperature=0.7), True),
        (3, Source.POLICY, Sampling(), False),
        (5, Source.POLICY, Sampling(), False),
        (4, Source.REPLAY, Sampling(), False),
        (0, Source.DEMONSTRATION, Sampling(), True),  # of which no log-prob is compared
        (4, Source.POLICY, Sampling(top_p=0.9), False),
        (4, Source.POLICY, Sampling(top_k=20), False),
    ],
)
def test_only_samples_of_the_whole_distribution_by_the_weights_of_now_tell(
    version: int, source: Source, sampling: Sampling, tells: bool
) -> None:
    rows = [row_of(4, Source.POLICY), row_of(version, source)]
    assert (Scene().canary.samples_check(rows, sampling, step=5) is not None) == tells


def test_beside_samples_that_agree_a_skipped_sync_stops_the_run() -> None:
    scene = Sampled()
    scene.look(0)
    update(scene.model, 0.001)
    with pytest.raises(RunError, match=r"must move with the learner's, got no change while .* \(canary, step 1\)"):
        scene.look(1)


def test_beside_samples_that_agree_small_updates_stop_the_run_when_they_have_added_up() -> None:
    scene, steps = Sampled(), 0
    scene.look(0)
    with pytest.raises(RunError, match="must move with the learner's"):  # noqa: PT012  # which look it is, is asked below
        for _ in range(40):
            update(scene.model, 2e-5)
            steps += 1
            scene.look(steps)
    assert 1 < steps < 40


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "norm"])
def test_every_kind_of_weight_that_never_arrives_stops_the_run(part: str) -> None:
    scene = Sampled()
    scene.look(0)
    update(scene.model, 0.5, part=part)
    with pytest.raises(RunError, match="must move with the learner's, got no change"):
        scene.look(1)


def test_a_sampler_that_keeps_copies_of_old_weights_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Sampled()
    scene.model = scene.model.bfloat16()
    scene.policy = TransformersPolicy(scene.model, shares_weights=True)
    if not can_pack(next(scene.model.parameters())):
        pytest.skip("no copies are kept on this processor")
    scene.look(0)
    monkeypatch.setattr(CachedModel, "forget_weights", lambda _: None)
    update(scene.model, 0.02, part="proj")
    scene.policy.set_version(1)
    with pytest.raises(RunError, match="must move with the learner's, got no change"):
        scene.look(1)


def test_rounding_in_bfloat16_is_five_deviations_from_a_false_alarm() -> None:
    """What SmolLM2-135M gives on a CPU is a mean of 0.043 nats, at most 0.05 on the prompt.

    A difference that is normal with mean size m has the deviation m sqrt(pi / 2 - 1), 0.756 m, and the mean over n
    tokens 0.756 m / sqrt(n): at 0.05 and 16 tokens 0.0094, and 0.1 is 5.3 of them away.
    """
    size, num_tokens = 0.05, NUM_SAMPLES * NUM_TOKENS
    deviation = size * math.sqrt(math.pi / 2 - 1) / math.sqrt(num_tokens)
    assert deviation == pytest.approx(0.00944, abs=1e-5)
    assert (CanarySettings().max_gap - size) / deviation > 5
    drawn = torch.randn(20_000, num_tokens, generator=torch.Generator().manual_seed(0)) * size * math.sqrt(math.pi / 2)
    means = drawn.abs().mean(dim=-1)
    assert means.mean().item() == pytest.approx(size, rel=0.01)
    assert means.std().item() == pytest.approx(deviation, rel=0.02)
    assert means.max() < CanarySettings().max_gap


def test_policy_and_learner_in_bfloat16_raise_no_false_alarm() -> None:
    scene = Scene()
    scene.model = scene.model.bfloat16()
    scene.policy = TransformersPolicy(copy.deepcopy(scene.model))
    scene.look(0)
    for step in range(1, 4):
        update(scene.model, 0.01)
        scene.policy.update_weights(merged_weights(scene.model), step)
        assert scene.look(step)["canary/gap"] < 0.05
