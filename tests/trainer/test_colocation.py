"""Runs whose policy and learner use one device in turns: a policy that fails where it is used while it sleeps."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from envgym.agents.models.loading import load
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.vllm.serve_start import is_usable
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer import build
from envgym.trainer.learner.learner import Learner
from envgym.trainer.models.policy_model import load_model
from envgym.trainer.run import sampler_turn
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from tests.agents.policies.small_models import train_adapters
from tests.support.tiny_runs import step_metrics, tiny_settings

ENGINE = {"backend": "vllm", "colocate": True, "device": "cpu"}


class TurnTakingPolicy(TransformersPolicy):
    """Samples from a copy of the model, as vLLM does, and fails where it is used at the wrong time.

    It may be updated only while it sleeps, once a turn, and may sample only while it is awake.
    """

    events: list[str]

    def __init__(self, source: str, **options: Any) -> None:
        super().__init__(load(source).model, device="cpu", max_batch=options["max_batch"])
        self._newest: list[tuple[str, Tensor]] | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        assert not self._is_asleep, "sampled asleep"
        if self.events[-1] != "sample":
            self.events.append("sample")
        return await super().generate(request)

    async def compute_logprobs(self, token_ids: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        assert not self._is_asleep, "scored asleep"
        return await super().compute_logprobs(token_ids)

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        assert self._is_asleep, "updated awake"
        assert self._newest is None, "updated twice in a turn"
        self._newest = [(name, tensor.clone()) for name, tensor in named_tensors]
        self._newest_version = version
        self.events.append(f"update {version}")

    def sleep(self) -> None:
        assert not self._is_asleep, "put to sleep twice"
        super().sleep()
        self.events.append("sleep")

    def wake(self) -> None:
        assert self._is_asleep, "woken twice"
        super().wake()
        if self._newest is not None:
            super().update_weights(self._newest, self._newest_version)
            self._newest = None
        self.events.append("wake")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let runs sample with the policy above on the CPU, and return what happens in them."""
    happened = ["start"]
    monkeypatch.setattr(TurnTakingPolicy, "events", happened, raising=False)
    monkeypatch.setattr("envgym.agents.policies.vllm.policy.VllmPolicy", TurnTakingPolicy)
    monkeypatch.setattr(build, "check_colocation", lambda device, has_ranks: None)
    learn = Learner.train_step

    def noting(learner: Learner, *args: Any, **options: Any) -> Any:  # passed on
        happened.append("learn")
        return learn(learner, *args, **options)

    monkeypatch.setattr(Learner, "train_step", noting)
    return happened


def settings(folder: Path, **sections: Any) -> TrainSettings:  # plain data
    changes = {"objective": {"entropy_coef": 0.1}, "optim": {"lr": 0.03}}  # so that every step moves the weights
    return tiny_settings(folder / "run", **{"engine": ENGINE, **changes, **sections})


@pytest.mark.parametrize("fails", [False, True])
def test_engine_sleeps_again_after_a_turn_within_learning_also_if_it_fails(fails: bool) -> None:
    calls = list[str]()
    policy = SimpleNamespace(wake=lambda: calls.append("wake"), sleep=lambda: calls.append("sleep"))
    parts: Any = SimpleNamespace(is_colocated=True, device=torch.device("cpu"), policy=policy)  # those that are used
    with suppress(RuntimeError), sampler_turn(parts):
        calls.append("sample")
        if fails:
            raise RuntimeError("sampling failed")
    assert calls == ["wake", "sample", "sleep"]


TURN = ["sample", "sleep", "learn"]


def test_engine_sleeps_while_a_step_learns_and_wakes_with_the_new_weights(events: list[str], tmp_path: Path) -> None:
    train(settings(tmp_path))
    first = ["start", "sleep", "wake"]  # memory is measured without the engine
    assert events == [*first, *TURN, "update 1", "wake", *TURN, "update 2", "wake", "sample"]
    steps = [row for row in RunDirectory.open(tmp_path / "run").metrics() if row["step"]]
    assert all(step["canary/gap"] < 1e-4 < 1e-3 < step["canary/moved"] for step in steps), "new weights sample"
    assert all(0 < step["time/sleep_s"] + step["time/wake_s"] < step["time/step_s"] for step in steps)


def test_numbers_are_those_of_a_run_that_is_not_colocated(events: list[str], tmp_path: Path) -> None:
    train(settings(tmp_path))
    train(settings(tmp_path / "plain", engine={"device": "cpu"}))
    of_runs = [step_metrics(tmp_path / folder) for folder in ("run", "plain/run")]
    for turns, plain in zip(*of_runs, strict=True):
        assert {"loss/policy", "optim/grad_norm", "rollout/episodes"} <= turns.keys() == plain.keys()
        assert turns == pytest.approx(plain, abs=1e-4)


def test_warm_start_learns_while_the_engine_sleeps_except_for_its_checks(events: list[str], tmp_path: Path) -> None:
    sft = {"episodes": 8, "batch_size": 8, "epochs": 2, "until_success": 1.0, "check_every": 1, "check_tasks": 1}
    train(settings(tmp_path, sft=sft, run={"steps": 0}))
    check = ["learn", "update 0", "wake", "sample", "sleep"]
    first = ["start", "sleep", "wake"]
    assert events in ([*first, "sleep", *check * count, "update 0", "wake", "sample"] for count in (1, 2))


def test_run_that_starts_from_an_adapter_samples_from_it_before_the_first_step(
    events: list[str], tmp_path: Path
) -> None:
    lora = {"lora": {"rank": 1, "target_modules": ["q_proj", "v_proj"]}}
    model, _ = load_model(settings(tmp_path, model=lora).model, torch.device("cpu"), None)
    train_adapters(model, seed=1)
    model.save_pretrained(tmp_path / "adapter")
    train(settings(tmp_path, model={**lora, "adapter": str(tmp_path / "adapter")}, run={"steps": 1}))
    start = ["start", "sleep", "wake", "sleep", "update 0", "wake"]
    assert events == [*start, *TURN, "update 1", "wake", "sample"]


def test_step_that_fails_to_learn_leaves_the_engine_asleep(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        events.append("learn")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Learner, "train_step", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(settings(tmp_path))
    assert events[-3:] == TURN


@pytest.mark.parametrize(
    "sections, says",
    [
        ({"engine": {"colocate": True}}, "engine.backend must be vllm with engine.colocate, got transformers"),
        ({"rollout": {"staleness": 1}}, "rollout.staleness must be 0 with engine.colocate, got 1"),
        ({"launch": {"learners": 2}}, "launch.learners must be 1 with engine.colocate, got 2"),
    ],
)
def test_what_cannot_take_turns_is_refused(tmp_path: Path, sections: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings(tmp_path, **sections)


def test_colocation_without_a_gpu_or_with_several_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"engine.device must be cuda with engine.colocate, got cpu"):
        train(settings(tmp_path))
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match=r"the run must learn in one process with engine.colocate, got several"):
        build.check_colocation(torch.device("cuda"), has_ranks=True)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and is_usable()), reason="CUDA or a vLLM for it is not available")
def test_vllm_on_a_gpu_takes_turns_with_the_learner(tmp_path: Path) -> None:
    train(settings(tmp_path, engine={**ENGINE, "device": "cuda", "cache_gib": 1, "max_context": 512}))
    steps = [row for row in RunDirectory.open(tmp_path / "run").metrics() if row["step"]]
    assert all(step["canary/gap"] < 0.05 and step["canary/moved"] > 1e-3 for step in steps)
    assert all(step["time/sleep_s"] > 0 and step["time/wake_s"] > 0 for step in steps)
