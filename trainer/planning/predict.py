"""The time of a train step, the memory of each device, and the bottleneck, predicted from settings and constants.

One step samples turns, learns from their tokens, and sends new weights to the policy servers. `docs/scaling.md`
states the formulas and where each constant was measured.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.train_step import FORWARD_SHARE, learning_passes
from envgym.trainer.planning.constants import ControlCosts, Device
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.settings import TrainSettings

GIB: Final = 2**30
_GATHERED: Final = 2
"""Layers of a sharded model that are whole at the same time: the one that is computed and the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What settings do not state: how long episodes are."""

    turns: int = 4
    """Turns of an episode."""
    prompt_tokens: int = 512
    """Tokens of the first context, which the episodes of a group share."""
    turn_tokens: int = 128
    """Tokens that the policy samples in a turn."""
    reply_tokens: int = 128
    """Tokens of an environment's reply; the last turn has none."""
    env_s: float = 0.0
    """Seconds that the environment takes for a turn."""

    @property
    def context(self) -> int:
        """Tokens of an episode at its end."""
        return self.prompt_tokens + self.turns * self.turn_tokens + (self.turns - 1) * self.reply_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run takes on its devices. Times are seconds of a train step, sizes are bytes."""

    learners: int
    servers: int
    sampling_s: float
    """The engines, and the environments that they wait for."""
    control_s: float
    """The run's own process, or each rollout worker, for the turns."""
    learn_s: float
    update_s: float
    """New weights to the policy servers."""
    overlaps: bool
    """Whether sampling and learning are at the same time."""
    learner_memory: Mapping[str, int]
    """Part -> bytes, of learner rank 0, which holds the most."""
    sampler_memory: Mapping[str, int]
    """Part -> bytes, on a device of a policy server, or of an engine that takes turns with the learner; else empty."""
    tokens: int
    """Tokens that are computed in a pass of learning."""

    @property
    def collect_s(self) -> float:
        """The slower of engines and controller."""
        return max(self.sampling_s, self.control_s)

    @property
    def step_s(self) -> float:
        """Wall time of a train step."""
        after = self.learn_s + self.update_s
        return max(self.collect_s, after) if self.overlaps else self.collect_s + after

    @property
    def seconds(self) -> Mapping[str, float]:
        """Part of a step -> its time."""
        return {
            "sampling": self.sampling_s,
            "control": self.control_s,
            "learning": self.learn_s,
            "update": self.update_s,
        }

    @property
    def bottleneck(self) -> str:
        """The part that takes most of the time."""
        return max(self.seconds, key=self.seconds.__getitem__)

    def to_json(self) -> dict[str, object]:
        """Return the plan as plain JSON types."""
        memory = {"learner": {**self.learner_memory, "total": sum(self.learner_memory.values())}}
        if self.sampler_memory:
            memory["sampler"] = {**self.sampler_memory, "total": sum(self.sampler_memory.values())}
        return {
            "learners": self.learners,
            "servers": self.servers,
            "seconds": {**self.seconds, "step": self.step_s},
            "overlaps": self.overlaps,
            "bottleneck": self.bottleneck,
            "memory_bytes": memory,
            "computed_tokens": self.tokens,
        }


def predict(
    settings: TrainSettings,
    workload: Workload,
    shape: ModelShape,
    device: Device,
    control: ControlCosts,
    objective: Objective,
) -> Plan:
    """Predict a train step; `objective` decides how many passes over the rows there are."""
    launch = settings.launch
    num_episodes = math.ceil(settings.rollout.groups * settings.rollout.group_size * settings.rollout.oversampling)
    tokens = _computed_tokens(settings, workload)
    return Plan(
        learners=launch.learners,
        servers=launch.servers,
        sampling_s=_sampling_s(settings, workload, shape, device, num_episodes),
        control_s=_control_s(settings, workload, control, num_episodes),
        learn_s=_learn_s(settings, workload, shape, device, objective, tokens),
        update_s=_update_s(settings, shape, control),
        overlaps=settings.rollout.overlaps and launch.servers > 0,
        learner_memory=_learner_memory(settings, workload, shape, num_episodes),
        sampler_memory=_sampler_memory(settings, workload, shape, num_episodes),
        tokens=tokens,
    )


# ---- time ------------------------------------------------------------------------------------------------------------


def uses_vllm(settings: TrainSettings) -> bool:
    """Return whether vLLM samples."""
    return (settings.launch.servers > 0 and settings.launch.server_engine == "vllm") or (
        settings.engine.backend.name == "vllm"
    )


def _batch(settings: TrainSettings, workload: Workload, shape: ModelShape, num_episodes: int) -> int:
    """Return how many sequences each engine samples at the same time."""
    engine, servers = settings.engine, settings.launch.servers
    share = math.ceil(num_episodes / max(1, servers))
    limit = min(share, engine.max_batch, share if servers else engine.concurrency)
    if not uses_vllm(settings):
        return limit
    cache = engine.tensor_parallel * engine.cache_gib * GIB  # each device of an engine has a cache
    return max(1, min(limit, int(cache / (_itemsize(settings.model.sampler_dtype) * shape.cached * workload.context))))


def devices_used(settings: TrainSettings) -> int:
    """Return how many devices a run takes; an engine in its process shares those of the learner."""
    launch, of_engine = settings.launch, settings.engine.tensor_parallel
    return launch.learners + launch.servers * of_engine if launch.servers else max(launch.learners, of_engine)


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def _sampling_s(
    settings: TrainSettings, workload: Workload, shape: ModelShape, device: Device, num_episodes: int
) -> float:
    """Return the time of the engines: decoding steps, each with its prefill, in waves of as many as they hold."""
    batch = _batch(settings, workload, shape, num_episodes)
    share = math.ceil(num_episodes / max(1, settings.launch.servers))
    waves = share / batch
    devices = settings.engine.tensor_parallel
    flops = devices * (device.decode_flops or device.train_flops)
    read = shape.weights + batch * workload.context / 2 * shape.cached * _itemsize(settings.model.sampler_dtype)
    layer_s = device.recorded_layer_s if uses_vllm(settings) else device.decode_layer_s
    step_s = shape.layers * layer_s + batch * (device.sequence_s + 2 * shape.parameters / flops)
    step_s += read / (devices * device.bandwidth)
    prefilled = workload.prompt_tokens + (workload.turns - 1) * workload.reply_tokens
    prefill_s = share * prefilled * 2 * shape.body / (devices * device.train_flops)
    return waves * workload.turns * (workload.turn_tokens * step_s + workload.env_s) + prefill_s


def _control_s(settings: TrainSettings, workload: Workload, control: ControlCosts, num_episodes: int) -> float:
    """Return the time of the process with the most turns: the run's own, or a rollout worker."""
    turns = num_episodes * workload.turns
    if not settings.launch.servers:
        return turns * control.local_turn_s
    turns = math.ceil(turns / max(1, settings.launch.rollout_workers))
    return turns * (control.turn_s + control.context_s * workload.context / 2)


def _computed_tokens(settings: TrainSettings, workload: Workload) -> int:
    """Return the tokens of a pass over a step's rows; a packed group has its prompt once."""
    groups, size = settings.rollout.groups, settings.rollout.group_size
    prompts = groups if settings.optim.packing else groups * size
    return prompts * workload.prompt_tokens + groups * size * (workload.context - workload.prompt_tokens)


def _learn_s(
    settings: TrainSettings,
    workload: Workload,
    shape: ModelShape,
    device: Device,
    objective: Objective,
    tokens: int,
) -> float:
    optim, ranks = settings.optim, settings.launch.learners
    sampled = settings.rollout.groups * settings.rollout.group_size * workload.turns * workload.turn_tokens
    flops = 6 * (shape.body * tokens + shape.head * sampled) + 12 * shape.layers * shape.width * tokens * (
        workload.context / 2
    )
    if settings.model.lora is not None:
        flops *= 1 - FORWARD_SHARE  # no gradient of the frozen weights
    if settings.model.gradient_checkpointing:
        flops *= 1 + FORWARD_SHARE
    num_batches = max(1, math.ceil(tokens / ranks / optim.micro_batch_tokens))
    compute_s = flops / (ranks * device.train_flops) + num_batches * shape.layers * device.pass_layer_s
    if ranks > 1:  # weights are gathered for the forward and the backward pass, and gradients are scattered
        compute_s = max(compute_s, num_batches * 3 * shape.weights / device.link)
    updates = optim.epochs * optim.minibatches
    return (
        learning_passes(optim, objective) * compute_s
        + updates * 2 * shape.state_of(ranks).total / ranks / device.bandwidth
    )


def _update_s(settings: TrainSettings, shape: ModelShape, control: ControlCosts) -> float:
    servers = settings.launch.servers
    if not servers:
        return 0.0
    if settings.launch.transport == "files":
        return shape.sent * (control.file_s + control.file_server_s * servers)
    return shape.sent * servers / control.transport


# ---- memory ----------------------------------------------------------------------------------------------------------


def _cache(settings: TrainSettings, workload: Workload, shape: ModelShape, num_episodes: int) -> int:
    if uses_vllm(settings):
        return round(settings.engine.cache_gib * GIB)
    batch = _batch(settings, workload, shape, num_episodes)
    return batch * workload.context * shape.cached * _itemsize(settings.model.sampler_dtype)


def _learner_memory(
    settings: TrainSettings, workload: Workload, shape: ModelShape, num_episodes: int
) -> dict[str, int]:
    """Return the parts of rank 0 while it learns."""
    ranks, largest = settings.launch.learners, _largest_batch(settings, workload)
    parts = {name: round(size / ranks) for name, size in asdict(shape.state_of(ranks)).items()}
    if ranks > 1:
        parts |= beside_shard(settings, shape)
    # Ranks gather the matrices of a layer in the type of the products, so nothing is cast.
    micro_batch = replace(shape.micro_batch, casts=0) if ranks > 1 else shape.micro_batch
    parts["activations"] = micro_batch.of(largest)
    if _samples_beside(settings):
        parts["cache"] = _cache(settings, workload, shape, num_episodes)
        if uses_vllm(settings):
            parts["sampler weights"] = math.ceil(shape.weights / settings.engine.tensor_parallel)
    return parts


def _largest_batch(settings: TrainSettings, workload: Workload) -> int:
    """Return the tokens of the largest micro-batch: whole groups if one fits, else rows of a group; at least a row."""
    limit, size = settings.optim.micro_batch_tokens, settings.rollout.group_size
    shared = workload.prompt_tokens if settings.optim.packing else 0
    row = workload.context - shared
    group = shared + size * row
    if group <= limit:
        return min(limit // group, math.ceil(settings.rollout.groups / settings.launch.learners)) * group
    return shared + max(1, (limit - shared) // row) * row


def beside_shard(settings: TrainSettings, shape: ModelShape) -> dict[str, int]:
    """Return the bytes that rank 0 of several holds in addition to its shard, activations and the engine's copy.

    Layers are gathered in the type of the products; embeddings and head, together, in the type that trains. Without
    policy servers, rank 0 also holds the whole model in the type that trains.
    """
    trained = _itemsize(settings.model.dtype)
    layers = _GATHERED * _itemsize(settings.model.sampler_dtype) * shape.body / shape.layers
    parts = {"gathered layers": round(layers), "gathered head": trained * shape.outside}
    if not settings.launch.servers:
        parts["whole weights"] = trained * (shape.body + shape.outside) + shape.adapters
    return parts


def _samples_beside(settings: TrainSettings) -> bool:
    """Return whether the learner's device also samples, at the same time."""
    return not settings.launch.servers and not settings.engine.colocate


def _sampler_memory(
    settings: TrainSettings, workload: Workload, shape: ModelShape, num_episodes: int
) -> dict[str, int]:
    """Return the parts of a policy server, or those of the learner's device while a colocated engine samples."""
    if _samples_beside(settings):
        return {}
    weights = math.ceil(shape.weights / settings.engine.tensor_parallel)
    parts = {"weights": weights, "cache": _cache(settings, workload, shape, num_episodes)}
    if settings.engine.colocate:  # gradients are gone after each update
        state = shape.state_of(settings.launch.learners)
        parts |= {"learner weights": state.weights, "optimizer": state.optimizer}
    return parts
