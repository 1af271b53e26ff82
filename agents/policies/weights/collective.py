"""Weights over a process group of two, the run (rank 0) and one server (rank 1): NCCL between GPUs, gloo between CPUs.

A group for each server, so that one that dies takes nobody along. The stream describes itself: the length of its
description, the description (names, shapes and types of all tensors), and then the bytes, bucket by bucket. So the
server knows whether the weights fit before it takes any.
"""

import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore  # typed there

from envgym.errors import InvalidInput

_BUCKET_BYTES: Final = 256 << 20
"""Of tensors that are sent at once; a larger tensor is a bucket of its own."""
_MAX_DESCRIPTION_BYTES: Final = 64 << 20
_MAX_TIMEOUT_S: Final = 3600.0
_SERVER_RANK: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """Where a group meets: what `/init_weight_transfer_engine` is told."""

    host: str
    port: int
    backend: str
    """`nccl` or `gloo`."""
    timeout_s: float
    """Longest wait for the other side."""

    @classmethod
    def parse(cls, fields: object, *, where: str) -> "GroupAddress":
        """Read what a client sent. Raises: InvalidInput: it is no address."""
        names = {"host": str, "port": int, "backend": str, "timeout_s": (int, float)}
        data: Any = fields
        is_address = (
            isinstance(data, dict)
            and data.keys() == names.keys()
            and all(isinstance(data[name], kind) for name, kind in names.items())  # type: ignore[arg-type]  # of types
            and 0 < data["port"] < 1 << 16
            and 0 < data["timeout_s"] <= _MAX_TIMEOUT_S
        )
        do = "send host, port, backend and timeout_s"
        InvalidInput.unless(is_address, "init_info", "say where the group meets", fields, where=where, do=do)
        return cls(**data)


class WeightGroup:
    """One side of a group."""

    def __init__(self, group: Any, device: torch.device) -> None:  # a backend of torch.distributed
        self._group, self._device = group, device

    def send(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Send tensors. Raises: RuntimeError: the server has gone, or takes none in time."""
        named_tensors = list(named_tensors)
        entries = [
            (name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named_tensors
        ]
        described = json.dumps(entries).encode()
        self._broadcast(torch.tensor([len(described)]))
        self._broadcast(torch.frombuffer(bytearray(described), dtype=torch.uint8))
        for bucket in _buckets(named_tensors):
            self._broadcast(torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in bucket]))

    def receive_description(self) -> list[tuple[str, Tensor]]:
        """Return the tensors that will be sent, without their data: on the device `meta`.

        Raises: RuntimeError: the run has gone, or sends nothing in time. ValueError, TypeError: it describes nothing.
        """
        length = int(self._broadcast(torch.zeros(1, dtype=torch.int64)).item())
        if not 0 < length <= _MAX_DESCRIPTION_BYTES:
            raise ValueError(f"a description of {length} bytes")
        described = self._broadcast(torch.zeros(length, dtype=torch.uint8))
        entries: Any = json.loads(bytes(described.cpu().numpy()))
        return [(str(name), torch.empty(shape, dtype=_dtype(dtype), device="meta")) for name, shape, dtype in entries]

    def receive(self, described: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that `receive_description` returned, with their data.

        Raises: RuntimeError: the run has gone, or sends nothing in time.
        """
        for bucket in _buckets(described):
            sizes = [tensor.nbytes for _, tensor in bucket]
            data = self._broadcast(torch.empty(sum(sizes), dtype=torch.uint8))
            for (name, tensor), part in zip(bucket, data.split(sizes), strict=True):
                yield name, part.clone().view(tensor.dtype).view(tensor.shape)

    def close(self) -> None:
        """Leave the group, whatever is under way."""
        abort = getattr(self._group, "abort", None)
        if abort is not None:
            abort()

    def _broadcast(self, tensor: Tensor) -> Tensor:
        device_tensor = tensor.to(self._device)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([device_tensor], options).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return device_tensor


class Rendezvous(NamedTuple):
    """A place where a server can meet the run."""

    address: GroupAddress
    listening: socket.socket

    @classmethod
    def prepare(cls, host: str, backend: str, *, timeout_s: float) -> "Rendezvous":
        """Listen on an address of this machine that the server reaches, and on no other."""
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.bind((host, 0))
        listening.listen()
        port = listening.getsockname()[1]
        return cls(GroupAddress(host=host, port=port, backend=backend, timeout_s=timeout_s), listening)

    def meet(self, device: torch.device) -> WeightGroup:
        """Wait for the server. Raises: RuntimeError: it does not come in time."""
        return _open(self.address, 0, device, listening=self.listening)


def join(address: GroupAddress, device: torch.device) -> WeightGroup:
    """Meet the run, as its server. Raises: RuntimeError: it is not there. InvalidInput: a device that cannot."""
    return _open(address, _SERVER_RANK, group_device(address.backend, device), listening=None)


def group_device(backend: str, device: torch.device) -> torch.device:
    """Return where tensors lie that are sent from or to a device. Raises: InvalidInput: it has no such way."""
    InvalidInput.unless(
        backend in transports_of(device),
        "transport of weights",
        f"be {' or '.join(transports_of(device))} on {device.type}",
        backend,
        where="transport",
        do="choose one of them; nccl needs a GPU on both sides",
    )
    return device if backend == "nccl" else torch.device("cpu")


def transports_of(device: torch.device) -> tuple[str, ...]:
    """Return the ways by which weights come to a model on a device."""
    return ("files", "ipc", "gloo", "nccl") if device.type == "cuda" else ("files", "ipc", "gloo")


def local_address(host: str, port: int) -> str:
    """Return the address of this machine from which another one is reached. Raises: OSError: it is not."""
    with socket.create_connection((host, port), timeout=10) as connection:
        address: str = connection.getsockname()[0]
    return address


def _open(address: GroupAddress, rank: int, device: torch.device, *, listening: socket.socket | None) -> WeightGroup:
    limit = timedelta(seconds=address.timeout_s)
    options: dict[str, Any] = {} if listening is None else {"master_listen_fd": listening.detach()}
    store = TCPStore(address.host, address.port, 2, rank == 0, limit, wait_for_workers=False, use_libuv=True, **options)
    if address.backend == "nccl":
        return WeightGroup(_nccl_group(store, rank, limit), device)
    # Over the address by which both sides reach each other; gloo's own choice is that of the machine's name.
    own = address.host if rank == 0 else local_address(address.host, address.port)
    gloo: Any = dist.ProcessGroupGloo  # its options are not in torch's stubs
    gloo_options = gloo._Options()
    gloo_options._devices, gloo_options._timeout = [gloo.create_device(hostname=own)], limit
    return WeightGroup(gloo(store, rank, 2, gloo_options), device)


def _nccl_group(store: TCPStore, rank: int, limit: timedelta) -> Any:  # ProcessGroupNCCL
    nccl: Any = dist.ProcessGroupNCCL  # as above
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, rank, 2, options)


def _dtype(name: str) -> torch.dtype:
    dtype: object = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of numbers")
    return dtype


def _buckets(named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named_tensors:
        if bucket and size + tensor.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket
