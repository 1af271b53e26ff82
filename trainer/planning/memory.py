"""The bytes that a learner rank and a sampling engine hold, by part."""

import math
from dataclasses import asdict, replace
from typing import Final

from envgym.trainer.planning.constants import Device
from envgym.trainer.planning.engine import cache_sizes, itemsize, uses_vllm
from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Packing, Workload
from envgym.trainer.settings import TrainSettings

_GATHERED: Final = 2
"""Layers of a sharded model that are whole at the same time: the one that is computed and the next one."""


def learner_memory(
    settings: TrainSettings, workload: Workload, shape: ModelShape, device: Device | None, *, is_coupled: bool
) -> dict[str, int]:
    """Return the parts of rank 0 while it learns; without a device, those of its tensors.

    `is_coupled` states whether the objective couples rows, so that a minibatch has whole groups.
    """
    ranks, packing = settings.launch.learners, Packing.of(settings, workload, is_coupled=is_coupled)
    parts = {name: round(size / ranks) for name, size in asdict(shape.state_of(ranks)).items()}
    if ranks > 1:
        parts |= beside_shard(settings, shape)
    # Ranks gather the matrices of a layer in the type of the products, so nothing is cast.
    micro_batch = replace(shape.micro_batch, casts=0) if ranks > 1 else shape.micro_batch
    parts["activations"] = micro_batch.of(packing.largest)
    if _samples_beside(settings):
        parts |= _cache(settings, workload, shape, device)
        if uses_vllm(settings):
            parts["sampler weights"] = math.ceil(shape.weights / settings.engine.tensor_parallel)
    if device is not None and device.heap_overhead > 1 and packing.batches > 1:
        changing = sum(parts[name] for name in ("gradients", "optimizer", "activations"))
        parts["unused heap"] = round((device.heap_overhead - 1) * changing)
    return _with_libraries(parts, device)


def beside_shard(settings: TrainSettings, shape: ModelShape) -> dict[str, int]:
    """Return the bytes that rank 0 of several holds in addition to its shard, activations and the engine's copy.

    Layers are gathered in the type of the products; embeddings and head, together, in the type that trains. The
    gradients of a layer, and those of embeddings and head, are whole before they are scattered. Without policy servers,
    rank 0 also holds the whole model in the type that trains.
    """
    trained = itemsize(settings.model.dtype)
    layer = itemsize(settings.model.sampler_dtype) * shape.body / shape.layers
    parts = {"gathered layers": round(_GATHERED * layer), "gathered head": trained * shape.outside}
    parts["whole gradients"] = shape.adapters // shape.layers or round(layer) + trained * shape.outside
    if not settings.launch.servers:
        parts["whole weights"] = trained * (shape.body + shape.outside) + shape.adapters
    return parts


def sampler_memory(
    settings: TrainSettings, workload: Workload, shape: ModelShape, device: Device | None
) -> dict[str, int]:
    """Return the parts of a policy server, or those of the learner's device while a colocated engine samples.

    Without a device these are the parts of its tensors.
    """
    if _samples_beside(settings):
        return {}
    weights = math.ceil(shape.weights / settings.engine.tensor_parallel)
    parts = {"weights": weights, **_cache(settings, workload, shape, device)}
    if settings.engine.colocate:  # gradients are gone after each update
        state = shape.state_of(settings.launch.learners)
        parts |= {"learner weights": state.weights, "optimizer": state.optimizer}
    return _with_libraries(parts, device)


def _cache(settings: TrainSettings, workload: Workload, shape: ModelShape, device: Device | None) -> dict[str, int]:
    """Return the bytes of an engine's cache, and of the smaller ones before it where the process keeps them."""
    *smaller, largest = cache_sizes(settings, workload, shape)
    is_kept = device is not None and device.keeps_freed and bool(smaller)
    return {"cache": largest} | ({"freed caches": sum(smaller)} if is_kept else {})


def _with_libraries(parts: dict[str, int], device: Device | None) -> dict[str, int]:
    """Return the parts of tensors, and what a process without a model holds on a device where it was measured."""
    return parts | ({"libraries": round(device.libraries)} if device is not None and device.libraries else {})


def _samples_beside(settings: TrainSettings) -> bool:
    """Return whether the learner's device also samples, at the same time."""
    return not settings.launch.servers and not settings.engine.colocate
