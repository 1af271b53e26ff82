"""What the settings of the sampling engine decide: its kind, its order of service, and its batch."""

import math
from typing import Final

from envgym.trainer.planning.shapes import ModelShape
from envgym.trainer.planning.workload import Workload, num_episodes
from envgym.trainer.settings import TrainSettings

GIB: Final = 2**30
_COLUMNS: Final = 64
"""The engine of transformers allocates its cache in multiples of this many tokens."""


def uses_vllm(settings: TrainSettings) -> bool:
    """Return whether vLLM samples."""
    return (settings.launch.servers > 0 and settings.launch.server_engine == "vllm") or (
        settings.engine.backend.name == "vllm"
    )


def samples_in_rounds(settings: TrainSettings) -> bool:
    """Return whether no request joins before all sequences of a round have ended."""
    return settings.rollout.deterministic and not uses_vllm(settings)


def itemsize(dtype: str) -> int:
    """Return the bytes of a number of a type that settings name."""
    return 2 if dtype == "bfloat16" else 4


def devices_used(settings: TrainSettings) -> int:
    """Return how many devices a run takes; an engine in its process shares those of the learner."""
    launch, of_engine = settings.launch, settings.engine.tensor_parallel
    return launch.learners + launch.servers * of_engine if launch.servers else max(launch.learners, of_engine)


def engine_batch(settings: TrainSettings, workload: Workload, shape: ModelShape) -> int:
    """Return how many sequences each engine samples at the same time."""
    engine, servers = settings.engine, settings.launch.servers
    share = math.ceil(num_episodes(settings) / max(1, servers))
    limit = min(share, engine.max_batch, share if servers else engine.concurrency)
    if not uses_vllm(settings):
        return limit
    cache = engine.tensor_parallel * engine.cache_gib * GIB  # each device of an engine has a cache
    return max(1, min(limit, int(cache / (itemsize(settings.model.sampler_dtype) * shape.cached * workload.context))))


def cache_sizes(settings: TrainSettings, workload: Workload, shape: ModelShape) -> list[int]:
    """Return the bytes of an engine's cache of keys and values, each time that it has grown; the last is the largest.

    The cache of transformers begins with the columns of the prompts and grows by half when an episode needs more.
    """
    if uses_vllm(settings):
        return [round(settings.engine.cache_gib * GIB)]
    columns = [_rounded(workload.prompt_tokens + 1)]
    while columns[-1] <= workload.context:
        columns.append(_rounded(columns[-1] + columns[-1] // 2))
    batch = engine_batch(settings, workload, shape)
    of_column = batch * shape.cached * itemsize(settings.model.sampler_dtype)
    return [of_column * number for number in columns]


def _rounded(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS
