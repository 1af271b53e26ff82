"""Plans that devices cannot hold are refused with a remedy, and the fastest split is found."""

import re
from dataclasses import replace
from typing import Any

import pytest

from envgym.errors import SettingsError
from envgym.trainer.launch.launch import check_addresses
from envgym.trainer.method import build_method
from envgym.trainer.planning.fit import check_fits, fastest_split
from envgym.trainer.planning.predict import Plan
from tests.support.toy_plan import CONTROL, DEVICE, GIB, SHAPE, WORK, planned, settings_of


def test_the_fastest_split_is_the_best_of_all_that_fit() -> None:
    settings = settings_of(launch={"servers": 1, "transport": "nccl"})
    objective = build_method(settings).objective
    best = fastest_split(settings, WORK, SHAPE, DEVICE, CONTROL, objective, num_devices=4, check_split=check_addresses)
    assert best is not None
    times = [
        planned(launch={"learners": n, "servers": 4 - n, "transport": "nccl"}, engine={"device": "cpu"}).step_s
        for n in (1, 2, 3)
    ]
    assert best.learners + best.servers == 4
    assert best.step_s == pytest.approx(min(times))
    small = replace(DEVICE, memory=GIB)
    assert (
        fastest_split(settings, WORK, SHAPE, small, CONTROL, objective, num_devices=4, check_split=check_addresses)
        is None
    )


def test_a_split_that_a_run_would_refuse_is_not_proposed() -> None:
    """Adafactor trains no shards, and vLLM in the run's process has no policy servers."""

    def best(num_devices: int, **sections: Any) -> Plan | None:
        settings = settings_of(**sections)
        objective = build_method(settings).objective
        return fastest_split(
            settings, WORK, SHAPE, DEVICE, CONTROL, objective, num_devices=num_devices, check_split=check_addresses
        )

    split = best(8, launch={"servers": 1, "transport": "nccl"}, optim={"optimizer": "adafactor", "lr": 5e-4})
    assert split is not None
    assert split.learners == 1
    assert best(4, engine={"backend": "vllm"}) is None
    assert best(1, launch={"servers": 1, "transport": "nccl"}) is None, "without servers there is no transport"


def refusal(num_devices: int = 1, memory: float = DEVICE.memory, **sections: Any) -> str:
    settings, device = settings_of(**sections), replace(DEVICE, memory=memory)
    plan = planned(device=device, **sections)
    with pytest.raises(SettingsError) as refused:
        check_fits(plan, settings, SHAPE, device, num_devices=num_devices)
    return str(refused.value)


def test_more_processes_than_devices_are_refused() -> None:
    assert refusal(2, launch={"servers": 2, "transport": "nccl"}) == (
        "devices of learners and servers must be at most 2, got 3 (2 x toy); "
        "lower launch.learners or launch.servers, or raise --gpus."
    )
    split: dict[str, Any] = {
        "launch": {"servers": 1, "transport": "nccl", "server_engine": "vllm"},
        "engine": {"tensor_parallel": 2},
    }
    assert refusal(2, **split).startswith("devices of learners and servers must be at most 2, got 3 (2 x toy)")


def test_the_devices_of_an_embedded_engine_are_counted() -> None:
    told = refusal(1, engine={"backend": "vllm", "tensor_parallel": 2})
    assert told.startswith("devices of learners and servers must be at most 1, got 2 (1 x toy)")


def test_a_colocated_engine_does_not_fit_beside_the_optimizer() -> None:
    engine = {"backend": "vllm", "device": "cuda", "colocate": True, "cache_gib": 20}
    assert "memory of a device that samples in turns must fit 31.5 GiB" in refusal(memory=35 * GIB, engine=engine)


def test_a_split_server_reads_and_holds_a_share_of_the_weights_on_each_device() -> None:
    launch = {"servers": 1, "transport": "nccl", "server_engine": "vllm"}
    one, two = (planned(launch=launch, engine={"tensor_parallel": size}) for size in (1, 2))
    assert two.sampler_memory["weights"] == one.sampler_memory["weights"] / 2 == 2 * GIB
    layers_s = 102 * 10 * 0.0001  # 2 turns of 50 recorded steps and a prefill, with 10 layers
    assert two.sampling_s - layers_s == pytest.approx((one.sampling_s - layers_s) / 2)


def test_an_engine_that_takes_turns_is_no_memory_of_the_learner() -> None:
    settings: dict[str, Any] = {"engine": {"backend": "vllm", "device": "cuda", "cache_gib": 3}}
    beside = planned(**settings)
    turns = planned(engine={**settings["engine"], "colocate": True})
    engine = {"weights": 4 * GIB, "cache": 3 * GIB}
    assert turns.sampler_memory == {**engine, "learner weights": 4 * GIB, "optimizer": 8 * GIB}
    assert sum(beside.learner_memory.values()) - sum(turns.learner_memory.values()) == 7 * GIB


def test_activations_that_do_not_fit_name_a_micro_batch_that_does() -> None:
    sections: dict[str, Any] = {"optim": {"micro_batch_tokens": 2320}, "rollout": {"groups": 4, "group_size": 4}}
    memory = 25 * GIB
    told = refusal(memory=memory, **sections)
    assert "memory of a learner rank must fit 22.5 GiB (90% of the device), got 41.5 GiB" in told
    tokens = int(re.findall(r"lower optim.micro_batch_tokens to (\d+)", told)[0])
    fitting = {**sections, "optim": {"micro_batch_tokens": tokens}}
    check_fits(planned(**fitting), settings_of(**fitting), SHAPE, replace(DEVICE, memory=memory), num_devices=1)


def test_a_state_that_does_not_fit_names_the_ranks_that_hold_it() -> None:
    memory = 18 * GIB
    told = refusal(memory=memory)
    learners = int(re.findall(r"raise launch.learners to (\d+), or set model.lora", told)[0])
    more: dict[str, Any] = {"launch": {"learners": learners}, "engine": {"device": "cpu"}}
    check_fits(planned(**more), settings_of(**more), SHAPE, replace(DEVICE, memory=memory), num_devices=learners)


def test_a_server_that_does_not_fit_is_refused_too() -> None:
    shape = replace(SHAPE, weights=95 * GIB)
    sections: dict[str, Any] = {"launch": {"servers": 1, "transport": "nccl"}}
    plan = planned(shape=shape, **sections)
    with pytest.raises(SettingsError, match=r"memory of a policy server must fit 90.0 GiB .*got 95.* smaller model"):
        check_fits(plan, settings_of(**sections), shape, DEVICE, num_devices=2)
