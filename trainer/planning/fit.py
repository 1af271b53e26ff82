"""What devices can hold: a plan that does not fit is refused, and the split of devices that is the fastest."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import ValidationError

from envgym.errors import EnvgymError, SettingsError
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.optimizers.base import check_optimizer
from envgym.trainer.planning.constants import ControlCosts, Device
from envgym.trainer.planning.engine import GIB, devices_used, uses_vllm
from envgym.trainer.planning.memory import beside_shard
from envgym.trainer.planning.predict import Plan, predict
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Workload
from envgym.trainer.settings import TrainSettings

USABLE: Final = 0.9
"""Share of a device's memory that a plan may use: the allocator cannot use all."""


def check_fits(plan: Plan, settings: TrainSettings, shape: ModelShape, device: Device, *, num_devices: int) -> None:
    """Refuse a plan that its devices cannot hold. Raises: SettingsError: it names the setting to change."""
    used = devices_used(settings)
    where = f"{num_devices} x {device.name}"
    must, do = f"be at most {num_devices}", "lower launch.learners or launch.servers, or raise --gpus"
    SettingsError.unless(used <= num_devices, "devices of learners and servers", must, used, where=where, do=do)
    usable = round(USABLE * device.memory)
    engine = "policy server" if plan.servers else "device that samples in turns"
    for name, parts in (("learner rank", plan.learner_memory), (engine, plan.sampler_memory)):
        needed = sum(parts.values())
        if needed > usable:
            largest = max(parts, key=parts.__getitem__)
            got = f"{needed / GIB:.1f} GiB, of which {largest} {parts[largest] / GIB:.1f} GiB"
            must = f"fit {usable / GIB:.1f} GiB ({USABLE:.0%} of the device)"
            do = _remedy(name, parts, largest, settings, shape, usable)
            raise SettingsError.of(f"memory of a {name}", must, got, where=where, do=do)


def _remedy(
    name: str, parts: Mapping[str, int], largest: str, settings: TrainSettings, shape: ModelShape, usable: int
) -> str:
    """Return the remedy: the setting to change about the largest part."""
    if largest == "cache":
        key = "engine.cache_gib" if uses_vllm(settings) else "engine.max_batch"
        return f"lower {key}"
    if name != "learner rank" and largest in ("learner weights", "optimizer"):
        return "leave engine.colocate out and sample with launch.servers, or set model.lora"
    if name != "learner rank" or largest == "sampler weights":
        return "choose a smaller model, or set model.precision=bfloat16 if it is float32"
    if largest == "activations":
        fitting = shape.micro_batch.fitting(max(0, usable - sum(parts.values()) + parts[largest]))
        if fitting:
            return f"lower optim.micro_batch_tokens to {fitting}"
        if not settings.model.gradient_checkpointing:
            return "set model.gradient_checkpointing=true"
    fixed = sum(size for part, size in parts.items() if part not in ("weights", "gradients", "optimizer"))
    if settings.launch.learners == 1:
        fixed -= shape.micro_batch.casts  # ranks have none
    left = usable - fixed - sum(size for part, size in beside_shard(settings, shape).items() if part not in parts)
    if left > 0:
        return f"raise launch.learners to {math.ceil(shape.state_of(2).total / left)}, or set model.lora"
    return "set model.lora, lower optim.micro_batch_tokens, or choose a smaller model"


def _check_accepted(split: TrainSettings) -> None:
    """Check the settings with another split as a run does. Raises: SettingsError, ValidationError: one cannot be."""
    TrainSettings.model_validate(split.model_dump())
    check_optimizer(split.optim, is_bfloat16=False, is_sharded=split.launch.learners > 1)


def fastest_split(
    settings: TrainSettings,
    workload: Workload,
    shape: ModelShape,
    device: Device,
    control: ControlCosts,
    objective: Objective,
    *,
    num_devices: int,
    check_split: Callable[[TrainSettings], None],
) -> Plan | None:
    """Return the plan with the shortest step of those that fit; None if none fits, or the engine takes turns.

    One device learns and samples by turns. Of several devices, some learn and the others are of policy servers. A split
    with which the run would be refused is left out; `check_split` refuses what the settings' own checks do not, with an
    error of the project.
    """
    if settings.engine.colocate:
        return None
    plans, of_server = [], settings.engine.tensor_parallel
    for learners in range(1, max(2, num_devices)):
        servers = (num_devices - learners) // of_server
        launch = settings.launch.model_copy(update={"learners": learners, "servers": servers})
        split = settings.model_copy(update={"launch": launch})
        plan = predict(split, workload, shape, device, control, objective)
        try:
            check_split(split)
            _check_accepted(split)
            check_fits(plan, split, shape, device, num_devices=num_devices)
        except (EnvgymError, ValidationError):
            continue
        plans.append(plan)
    return min(plans, key=lambda plan: plan.step_s, default=None)
