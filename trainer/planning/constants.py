"""Measured constants of devices and of the control plane, read from one data file."""

import math
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final

from envgym.errors import check_known

_FILE: Final = "constants.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device can do. Times are seconds, sizes are bytes."""

    name: str
    memory: float
    """Memory of the device."""
    train_flops: float
    """Floating-point operations per second of forward and backward passes, with 6 per parameter and token."""
    pass_layer_s: float
    """Time of a forward and backward pass for each layer and micro-batch, whatever its size."""
    bandwidth: float
    """Bytes of memory that are read per second."""
    link: float
    """Bytes per second between devices, in one direction."""
    decode_layer_s: float
    """Time of a decoding step for each layer, whatever its size, with the engine `transformers`."""
    recorded_layer_s: float
    """The same with vLLM, which records its steps."""
    sequence_s: float = 0.0
    """Time of a decoding step for each sequence, whatever the model."""
    decode_flops: float | None = None
    """Operations per second of a decoding step; None: those of training."""
    attention_flops: float | None = None
    """Operations per second of scores and values in attention; None: those of training."""
    activation_bandwidth: float = math.inf
    """Bytes of kept activations per second, of operations between the products; inf: `train_flops` includes them."""
    cache_bandwidth: float | None = None
    """Bytes of the cache that a decoding step reads per second; None: those of other memory."""
    gather_layer_s: float = 0.0
    """Time of the collectives of a layer and micro-batch, whatever its size."""
    link_overlaps: bool = True
    """Whether layers are gathered while others are computed."""
    keeps_freed: bool = False
    """Whether the sampling thread keeps memory that it frees, which the learner then cannot use."""
    heap_overhead: float = 1.0
    """Bytes that a process takes for each byte of gradients, optimizer and activations, where an update has several
    micro-batches: gradients that stay lie between activations that are freed."""
    libraries: float = 0.0
    """Bytes that a process without a model holds; 0: not measured."""
    sources: tuple[str, ...] = ()
    """Where the numbers come from."""

    @property
    def attention_rate(self) -> float:
        """Operations per second of attention."""
        return self.attention_flops or self.train_flops

    @property
    def cache_rate(self) -> float:
        """Bytes of the cache that are read per second."""
        return self.cache_bandwidth or self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCosts:
    """What a turn and an update cost the run's own process."""

    turn_s: float
    """A turn with policy and environment servers."""
    context_s: float
    """Each token of its context."""
    local_turn_s: float
    """A turn in one process."""
    file_s: float
    """An update by files, per byte."""
    file_server_s: float
    """An update by files, per byte and server."""
    gloo_s: float
    """An update by gloo, per byte, for any number of servers."""
    transport: float
    """Bytes per second of an update by nccl, for any number of servers."""
    sources: tuple[str, ...] = field(default=())
    """Where the numbers come from."""


@cache
def _data() -> dict[str, Any]:  # a TOML file
    return tomllib.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


def device_names() -> list[str]:
    """Return the names of the devices that have constants."""
    return list(_data()["devices"])


def device_named(name: str) -> Device:
    """Return the constants of a device. Raises: UnknownName: there is none; near names are listed."""
    devices = _data()["devices"]
    check_known("device", name, devices, where="--gpu")
    return Device(name=name, **_numbers(Device, devices[name]), sources=_sources(devices[name]))


def control() -> ControlCosts:
    """Return the constants of the run's own process."""
    data = _data()["control"]
    return ControlCosts(**_numbers(ControlCosts, data), sources=_sources(data))


def shapes() -> dict[str, dict[str, Any]]:
    """Return name -> settings of the model's configuration, for the sizes that `--size` takes."""
    return dict(_data()["shapes"])


def _numbers(kind: type[Device] | type[ControlCosts], data: dict[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def _sources(data: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name.removesuffix('_source')}: {text}" for name, text in data.items() if name.endswith("_source"))
