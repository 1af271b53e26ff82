"""Weights over a process group of two, the run (rank 0) and one server (rank 1): NCCL between GPUs, gloo between CPUs.

A group for each server, so that one that dies takes nobody along. The stream describes itself: for each bucket of
tensors the length of its description, the description (names, shapes, types), the bytes; a length of 0 ends it.
"""

import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore  # typed there

from envgym.errors import InvalidInput

_BUCKET_BYTES: Final = 256 << 20
"""Of tensors that are sent at once; a larger tensor is a bucket of its own."""
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


class WeightGroup:
    """One side of a group."""

    def __init__(self, group: Any, device: torch.device) -> None:  # a backend of torch.distributed
        """Take a group that has met."""
        self._group, self._device = group, device

    def send(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Send tensors. Raises: RuntimeError: the server has gone, or takes none in time."""
        for bucket in _buckets(named_tensors):
            entries = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in bucket]
            described = json.dumps(entries).encode()
            self._broadcast(torch.tensor([len(described)]))
            self._broadcast(torch.frombuffer(bytearray(described), dtype=torch.uint8))
            self._broadcast(torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in bucket]))
        self._broadcast(torch.tensor([0]))

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what is sent. Raises: RuntimeError: the run has gone, or sends nothing in time."""
        while length := int(self._broadcast(torch.zeros(1, dtype=torch.int64)).item()):
            described = self._broadcast(torch.zeros(length, dtype=torch.uint8))
            entries = json.loads(bytes(described.cpu().numpy()))
            sizes = [prod(shape) * _dtype(name).itemsize for _, shape, name in entries]
            data = self._broadcast(torch.empty(sum(sizes), dtype=torch.uint8))
            for (name, shape, dtype), part in zip(entries, data.split(sizes), strict=True):
                yield name, part.clone().view(_dtype(dtype)).view(shape)

    def close(self) -> None:
        """Leave the group, whatever is under way."""
        abort = getattr(self._group, "abort", None)
        if abort is not None:
            abort()

    def _broadcast(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(self._device)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([sent], options).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return sent


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
    chosen = gloo._Options()
    chosen._devices, chosen._timeout = [gloo.create_device(hostname=own)], limit
    return WeightGroup(gloo(store, rank, 2, chosen), device)


def _nccl_group(store: TCPStore, rank: int, limit: timedelta) -> Any:  # ProcessGroupNCCL
    nccl: Any = dist.ProcessGroupNCCL  # as above
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, rank, 2, options)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
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
