"""Whole runs that sample from policy servers: sound ones, ones with a planted fault, ones whose servers die."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from envgym.agents.loop import state as agent_loop
from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.agents.models.weights import AdaptedWeights, merged_weights
from envgym.agents.policies.weights.transport import FileTransport, WeightUpdate
from envgym.agents.protocols import Generation
from envgym.core.segments import Segment
from envgym.errors import InvalidInput, PolicyFailure, RunError
from envgym.trainer.train import train
from tests.agents.policies.serving.running import Served, serving
from tests.support.tiny_runs import TINY, step_metrics, tiny_settings

pytestmark = pytest.mark.slow


def tiny_model(dtype: str = "float32") -> Any:  # PreTrainedModel
    return load("tiny", dtype=dtype, device="cpu", tiny=TinySettings(**TINY)).model


def run(
    folder: Path, *servers: Served, transport: str = "files", wait_s: float = 30.0, **sections: Any
) -> list[dict[str, float]]:
    """Train for two steps, in which the entropy bonus moves the weights, and return the metrics of the steps."""
    urls = [server.http.url for server in servers]
    weights = str(folder / "weights")
    backend = {"name": "policy_servers", "servers": urls, "weights": weights, "transport": transport, "wait_s": wait_s}
    settings: dict[str, Any] = {
        "engine": {"device": "cpu", "backend": backend},
        "optim": {"lr": 0.03},
        "objective": {"entropy_coef": 0.1},
    }
    train(tiny_settings(folder / "run", **(settings | sections)))
    return step_metrics(folder / "run")


def test_a_run_from_two_servers_learns_from_its_own_weights(tmp_path: Path) -> None:
    with serving(tiny_model()) as one, serving(tiny_model()) as other:
        steps = run(tmp_path, one, other)
        assert {one._policy.version, other._policy.version} == {2}
    assert [step["staleness/max"] for step in steps] == [0.0, 0.0]
    assert all(step["canary/gap"] < 1e-4 < step["canary/moved"] for step in steps)


@pytest.mark.parametrize("transport", ["files", "gloo", "ipc"])
def test_a_mixed_run_samples_from_a_server_in_bfloat16(transport: str, tmp_path: Path) -> None:
    with serving(tiny_model("bfloat16")) as server:
        steps = run(tmp_path, server, transport=transport, model={"precision": "mixed"})
        assert server._policy.version == 2
    assert all(0 < step["canary/gap"] < 0.05 for step in steps)
    assert all(step["canary/moved"] > 1e-3 for step in steps)


def test_a_server_of_another_number_type_is_refused(tmp_path: Path) -> None:
    with (
        serving(tiny_model()) as server,
        pytest.raises(InvalidInput, match=r"dtype of the server must be bfloat16, got float32 .*--dtype bfloat16"),
    ):
        run(tmp_path, server, model={"precision": "mixed"})


def test_a_run_has_the_same_numbers_however_weights_get_to_its_server(tmp_path: Path) -> None:
    found = []
    for transport in ("files", "gloo", "ipc"):
        with serving(tiny_model()) as server:
            found.append(run(tmp_path / transport, server, transport=transport))
            assert server._policy.version == 2
    assert [path.parent.name for path in tmp_path.glob("*/weights")] == ["files"]
    for by_files, *others in zip(*found, strict=True):
        assert by_files.pop("cost/tokens_prefilled") > 0
        for other in others:
            assert other.pop("cost/tokens_prefilled") > 0
            assert other == pytest.approx(by_files, rel=1e-4, abs=1e-6)


LORA: dict[str, Any] = {"model": {"lora": {"rank": 1, "target_modules": ["q_proj"]}}, "run": {"steps": 3}}


def test_a_run_that_sends_adapters_has_the_numbers_of_one_that_sends_merged_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    sound = FileTransport.publish

    def counting(
        transport: FileTransport,
        named_tensors: Iterable[tuple[str, Tensor]],
        version: int,
        *,
        base: WeightUpdate | None = None,
    ) -> WeightUpdate:
        tensors = list(named_tensors)
        sizes.append(sum(tensor.nbytes for _, tensor in tensors))
        return sound(transport, tensors, version, base=base)

    monkeypatch.setattr(FileTransport, "publish", counting)
    with serving(tiny_model()) as server:
        adapters = run(tmp_path / "adapters", server, **LORA)
        assert server._policy.version == 3
    monkeypatch.setattr(
        "envgym.trainer.learner.learner.merged_weights",
        lambda model, *, dtype=None: list(merged_weights(model, dtype=dtype)),
    )
    with serving(tiny_model()) as server:
        merged = run(tmp_path / "merged", server, **LORA)
    assert len(sizes) == 6
    assert 0 < max(sizes[:3]) < min(sizes[3:]) / 20
    for by_adapters, by_weights in zip(adapters, merged, strict=True):
        assert by_adapters.pop("cost/tokens_prefilled") > 0  # depends on which requests meet
        assert by_weights.pop("cost/tokens_prefilled") > 0
        assert by_adapters == pytest.approx(by_weights, rel=1e-4, abs=1e-6)
        assert by_adapters["canary/gap"] < 1e-4 < by_adapters["canary/moved"]


def test_the_canary_stops_a_run_whose_servers_get_old_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, first = AdaptedWeights.adapters, list[list[tuple[str, Tensor]]]()

    def stale(weights: AdaptedWeights) -> list[tuple[str, Tensor]]:
        first.append([(name, tensor.clone()) for name, tensor in sound(weights)])
        return first[0]

    monkeypatch.setattr(AdaptedWeights, "adapters", stale)
    with serving(tiny_model()) as server, pytest.raises(RunError, match="the sampler's log-probs must"):
        run(tmp_path, server, **LORA)
    assert len(first) >= 2


def test_a_run_whose_sampling_overlaps_learning_knows_the_age_of_each_token(tmp_path: Path) -> None:
    with serving(tiny_model()) as server:
        steps = run(
            tmp_path,
            server,
            rollout={"staleness": 2, "deterministic": False},
            correction={"name": "tis"},
            run={"steps": 4},
        )
    assert all(0 <= step["staleness/mean"] <= step["staleness/max"] <= 2 for step in steps)
    assert all(step["canary/gap"] < 1e-4 for step in steps)


def test_the_canary_stops_a_run_whose_servers_get_old_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, first = FileTransport.publish, list[list[tuple[str, Tensor]]]()

    def stale(transport: FileTransport, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        first.append([(name, tensor.clone()) for name, tensor in named_tensors])
        return sound(transport, first[0], version)

    monkeypatch.setattr(FileTransport, "publish", stale)
    with serving(tiny_model()) as server, pytest.raises(RunError, match="the sampler's log-probs must"):
        run(tmp_path, server)
    assert len(first) >= 2


def test_the_mask_audit_stops_a_run_that_tokenises_turns_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = agent_loop._sampled_segments

    def others(generation: Generation, strings: tuple[str, ...]) -> tuple[Segment, ...]:
        from dataclasses import replace

        first, *rest = sound(generation, strings)
        return replace(first, token_ids=(first.token_ids[0] + 1, *first.token_ids[1:])), *rest

    monkeypatch.setattr(agent_loop, "_sampled_segments", others)
    with (
        serving(tiny_model()) as server,
        pytest.raises(RunError, match="tokens that train must be sampled by the policy in that context"),
    ):
        run(tmp_path, server)


def kill_after(server: Served, num_steps: int) -> None:
    decode, left = server._policy._model.decode, [num_steps]

    def counted(*arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            server.thread.loop.call_soon_threadsafe(server.vanish)
        return decode(*arguments)

    server._policy._model.decode = counted  # type: ignore[method-assign, assignment]  # of this instance


def test_a_server_that_dies_in_mid_run_costs_no_episode_where_there_is_another(tmp_path: Path) -> None:
    with serving(tiny_model()) as one, serving(tiny_model()) as other:
        kill_after(one, 20)
        steps = run(tmp_path, one, other)
        assert other._policy.version == 2
    assert [step["rollout/invalid"] for step in steps] == [0.0, 0.0]


def test_without_any_server_the_run_ends_with_a_sentence_and_no_reward(tmp_path: Path) -> None:
    with serving(tiny_model()) as server:
        kill_after(server, 20)
        with pytest.raises((RunError, PolicyFailure)) as raised:
            run(tmp_path, server, wait_s=1.0)
    assert "is down" in str(raised.value) or "invalid" in str(raised.value)
    assert "\n" not in str(raised.value)
