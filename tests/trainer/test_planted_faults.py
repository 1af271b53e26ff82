"""Whole runs with one fault planted in each: the canary or the mask audit stops them, and a sound run goes on."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from envgym.agents.loop import state as agent_loop
from envgym.agents.models.loading import load
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import Generation, Policy
from envgym.core.segments import Segment
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer import build
from envgym.trainer.batch import rows as batch
from envgym.trainer.checks.mask_audit import AuditedPolicy, MaskAudit
from envgym.trainer.learner import learner
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings


def run(directory: Path, *, lora: bool = False, steps: int = 1, **sections: Any) -> list[dict[str, float]]:
    """Train for one step or some, in which the entropy bonus moves the weights, and return the metrics."""
    data = {
        "run": {"steps": steps, "checkpoint_every": 10},
        "model": {"lora": {"rank": 4} if lora else None},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
        "agent": {"name": "tool_calling", "max_turn_tokens": 12, "max_context_tokens": 512, "on_length": "truncate"},
        "rollout": {"groups": 2, "group_size": 2},
        "optim": {"lr": 0.03},
        "objective": {"entropy_coef": 0.1},
        "evaluation": {"tasks": 2},
    }
    settings = tiny_settings(directory, **{**data, **sections})
    train(settings)
    return list(RunDirectory.open(directory).metrics())


def test_the_mask_audit_stops_a_run_whose_mask_is_off_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = batch.train_row

    def shifted(*arguments: Any) -> batch.TrainRow:  # as `train_row` takes them
        row = sound(*arguments)
        return replace(row, loss_mask=(*row.loss_mask[1:], False))

    monkeypatch.setattr(batch, "train_row", shifted)
    with pytest.raises(
        RunError, match=r"tokens that train must be sampled by the policy in that context, got 1 others"
    ):
        run(tmp_path / "run")


def test_the_mask_audit_stops_a_run_that_tokenises_turns_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the same, byte for byte, and the tokens are not those that the policy sampled."""
    tokenizer: Any = load("tiny", dtype="float32", device="cpu").tokenizer
    sound = agent_loop._sampled_segments
    texts: list[tuple[str, str]] = []

    def again(generation: Generation, strings: tuple[str, ...]) -> tuple[Segment, ...]:
        text = tokenizer.decode(generation.token_ids)
        token_ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        texts.append((text, tokenizer.decode(token_ids)))
        (segment,) = sound(generation, strings)
        zeros = (0.0,) * len(token_ids)
        return (replace(segment, token_ids=token_ids, token_strings=(), behavior_logprobs=zeros, raw_logprobs=None),)

    monkeypatch.setattr(agent_loop, "_sampled_segments", again)
    with pytest.raises(RunError, match=r"tokens that train must be sampled by the policy in that context"):
        run(tmp_path / "run")
    assert all(before == after for before, after in texts)


# ---- an engine with weights of its own ------------------------------------------------------------------------------


def copied(*_: object, learner_model: Any, **_others: object) -> Policy:  # PreTrainedModel or PeftModel
    """Return a policy that samples from a plain copy of the model, as another engine does."""
    own = copy.deepcopy(learner_model)
    module = own.merge_and_unload() if hasattr(own, "merge_and_unload") else own
    return AuditedPolicy(TransformersPolicy(module), MaskAudit().record)


def nothing(_: object, **_options: object) -> Iterable[tuple[str, Tensor]]:
    return ()


def without_adapters(model: Any, **_options: object) -> Iterator[tuple[str, Tensor]]:  # PeftModel
    for name, parameter in model.get_base_model().named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter.detach()


@pytest.mark.parametrize("lora", [False, True])
def test_engine_with_new_weights_lets_a_run_go_on(lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(build, "build_trained_policy", copied)
    (row,) = run(tmp_path / "run", lora=lora)
    assert row["canary/gap"] < 1e-5
    assert row["canary/moved"] > 1e-3


@pytest.mark.parametrize("fault, lora", [(nothing, False), (nothing, True), (without_adapters, True)])
def test_the_canary_stops_a_run_whose_engine_does_not(
    fault: object, lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(build, "build_trained_policy", copied)
    monkeypatch.setattr(learner, "merged_weights", fault)
    with pytest.raises(RunError, match=r"must move with the learner's, got no change while .* \(canary, step 1\)"):
        run(tmp_path / "run", lora=lora)


def without_embeddings(model: Any, **_options: object) -> Iterator[tuple[str, Tensor]]:  # PreTrainedModel
    for name, parameter in model.named_parameters():
        if "embed" not in name:
            yield name, parameter.detach()


class KeepsContexts(TransformersPolicy):
    """Samples after contexts that old weights have computed, and scores by a cache of its own."""

    def __init__(self, model: Any) -> None:  # PreTrainedModel
        super().__init__(model)
        self._engine.clear_prefix_cache = lambda: None  # type: ignore[method-assign]  # the fault
        self._scorer = TransformersPolicy(model)

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        return await self._scorer.compute_logprobs(token_ids)


def keeps_contexts(*_: object, learner_model: Any, **_others: object) -> Policy:  # PreTrainedModel
    return AuditedPolicy(KeepsContexts(copy.deepcopy(learner_model)), MaskAudit().record)


FAST: dict[str, Any] = {"steps": 3, "optim": {"lr": 0.3}}
"""Updates that move log-probs by more than rounding ever does."""


@pytest.mark.slow
def test_samples_of_a_sound_run_agree_also_after_large_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_trained_policy", copied)
    assert all(row["canary/gap"] < 1e-4 for row in run(tmp_path / "run", **FAST))


@pytest.mark.slow
@pytest.mark.parametrize("policy, fault", [(copied, without_embeddings), (keeps_contexts, merged_weights)])
def test_the_samples_of_a_step_stop_a_run_before_its_update(
    policy: object, fault: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build_trained_policy", policy)
    monkeypatch.setattr(learner, "merged_weights", fault)
    with pytest.raises(RunError, match=r"must match the learner's within 0.1 nats, .* \(canary, samples of step 2\)"):
        run(tmp_path / "run", **FAST)
    assert [row["step"] for row in RunDirectory.open(tmp_path / "run").metrics()] == [1]


# ---- contexts rendered anew -----------------------------------------------------------------------------------------

GAME: dict[str, Any] = {
    "envs": [{"id": "puzzles/frozen_lake-v0", "settings": {"max_turns": 6}}],
    "agent": {
        "name": "plain",
        "on_length": "close",
        "context": "drop_oldest_turns",
        "max_turn_tokens": 8,
        "max_context_tokens": 256,
    },
}
"""Several turns of nonsense in a context that holds few."""


def test_rewritten_contexts_are_counted_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    (row,) = run(tmp_path / "run", **GAME)
    assert row["context_rewrites/turns"] == row["context_rewrites/TURNS_DROPPED"] > 0
    assert row["rows/collected"] == pytest.approx(row["rollout/rows_per_episode"] * row["rollout/episodes"])
    assert row["rows/collected"] == row["rollout/episodes"] + row["context_rewrites/turns"]
    dropped = sum(count for name, count in row.items() if name.startswith("dropped/"))
    assert row["rows/trained"] + dropped == row["rows/collected"]
    assert row["rows/trained"] == row["train/rows"]


def test_a_rewritten_context_stops_a_run_that_must_have_none(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"contexts must continue the tokens of earlier turns unchanged, .* \(TURNS_DROPPED\)"
    ):
        run(tmp_path / "run", canary={"on_rewrite": "fail"}, **GAME)
