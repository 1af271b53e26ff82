"""Bytes on their way from rank 0 to all other ranks of a group: by NCCL between GPUs, by gloo between CPUs.

With gloo the ranks form a chain. Rank 0 sends every chunk once, to rank 1, and each rank passes a chunk on while the
next one arrives. So the time hardly grows with the number of ranks. In gloo's own broadcast, which is a tree,
rank 0 sends all bytes once for each doubling of the ranks. NCCL's own broadcast also passes chunks on.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store  # typed there

from envgym.errors import InvalidInput

_BUCKET_BYTES: Final = 256 << 20
"""Of tensors that are sent at once; a larger tensor is a bucket of its own."""
_CHUNK_BYTES: Final = 1 << 20
"""That a rank of a chain passes on at once. The last rank is a chunk later for each rank before it."""
_MAX_DESCRIPTION_BYTES: Final = 64 << 20
_BLOCKING_WAIT: Final = "TORCH_NCCL_BLOCKING_WAIT"
"""Environment variable of torch. A group that is made with it has no watchdog, which ends the process at an error."""


class ChannelFailed(Exception):
    """A rank has gone, or did nothing in time. No rank can use the channel any more."""


class Channel:
    """One rank's side of the connections between all ranks."""

    def __init__(self, group: Any, rank: int, size: int, device: torch.device) -> None:
        self._group, self._rank, self._size = group, rank, size  # a backend of torch.distributed
        self._device = device

    @classmethod
    def open(
        cls, store: Store, rank: int, size: int, backend: str, device: torch.device, *, own_host: str, timeout_s: float
    ) -> "Channel":
        """Connect to all other ranks.

        Args:
            store: that all ranks see, and no other channel uses.
            rank: of this process, which is below `size`.
            size: number of ranks.
            backend: `nccl` or `gloo`.
            device: where NCCL sends from or to.
            own_host: address of this process that the other ranks reach; gloo listens there and nowhere else.
            timeout_s: longest wait for another rank.

        Raises: ChannelFailed: a rank is not there in time.
        """
        try:
            if backend == "nccl":
                nccl: Any = dist.ProcessGroupNCCL  # its options are not in torch's stubs
                options = nccl.Options()
                options._timeout = timedelta(seconds=timeout_s)
                with _errors_raised():
                    channel = cls(nccl(store, rank, size, options), rank, size, device)
                channel._connect(timeout_s)
                return channel
            gloo: Any = dist.ProcessGroupGloo  # as above
            gloo_options = gloo._Options()
            gloo_options._devices = [gloo.create_device(hostname=own_host)]
            gloo_options._timeout = timedelta(seconds=timeout_s)
            group = gloo(store, rank, size, gloo_options)
            return cls(group, rank, size, torch.device("cpu"))
        except RuntimeError as error:
            raise ChannelFailed(_first_line(error)) from error

    def broadcast(self, data: Tensor) -> Tensor:
        """Send the bytes of rank 0, or receive them in place of `data` of the same size.

        Args:
            data: [num_bytes] uint8.

        Returns: the bytes of rank 0 on the channel's device, [num_bytes] uint8.

        Raises: ChannelFailed: another rank has gone, or did nothing for `timeout_s` of `open`.
        """
        device_data = data.to(self._device)
        try:
            if self._device.type == "cuda":
                self._broadcast_nccl(device_data)
            elif len(device_data):
                self._pass_on(device_data.split(_CHUNK_BYTES))
        except RuntimeError as error:
            raise ChannelFailed(_first_line(error)) from error
        return device_data

    def close(self) -> None:
        """Leave, whatever is under way: connections of gloo are closed when nobody uses the group any more."""
        group, self._group = self._group, None
        if group is not None and self._device.type == "cuda":
            group.abort()

    def _pass_on(self, chunks: tuple[Tensor, ...]) -> None:
        group = self._open_group()
        is_last, previous, following = self._rank == self._size - 1, self._rank - 1, self._rank + 1
        receiving = [group.recv([chunk], previous, 0) for chunk in chunks] if self._rank else []
        sending: list[Any] = []
        for number, chunk in enumerate(chunks):
            if receiving:
                receiving[number].wait()
            if not is_last:
                sending.append(group.send([chunk], following, 0))
        for work in sending:
            work.wait()

    def _broadcast_nccl(self, data: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = 0, 0, True
        self._open_group().broadcast([data], options).wait()  # ends the group and raises, when a rank fails or is late
        torch.cuda.synchronize(self._device)

    def _connect(self, timeout_s: float) -> None:
        """Send a byte, as NCCL connects in the first broadcast, where it waits for other ranks without a limit.

        Raises: RuntimeError: a rank has failed, or is not there in time.
        """
        failures: list[RuntimeError] = []

        def send() -> None:
            try:
                self._broadcast_nccl(torch.zeros(1, dtype=torch.uint8, device=self._device))
            except RuntimeError as error:
                failures.append(error)

        sending = Thread(target=send, name="nccl-connect", daemon=True)
        sending.start()
        sending.join(timeout_s)
        if sending.is_alive():
            Thread(target=self.close, name="nccl-abort", daemon=True).start()  # it may wait for the other thread
            raise RuntimeError(f"not every rank connected within {timeout_s:g} s")
        if failures:
            self.close()
            raise failures[0]

    def _open_group(self) -> Any:
        group = self._group
        if group is None:
            raise RuntimeError("this process has left the group")
        return group


def send_tensors(channel: Channel, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Send tensors from rank 0: their description, and their bytes bucket by bucket. Raises: ChannelFailed."""
    named_tensors = list(named_tensors)
    entries = [(name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named_tensors]
    described = json.dumps(entries).encode()
    channel.broadcast(torch.tensor([len(described)]).view(torch.uint8))
    channel.broadcast(torch.frombuffer(bytearray(described), dtype=torch.uint8))
    for bucket in buckets_of(named_tensors):
        channel.broadcast(torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in bucket]))


def receive_description(channel: Channel) -> list[tuple[str, Tensor]]:
    """Return the tensors that rank 0 will send, without their data: on the device `meta`.

    Raises: ChannelFailed. ValueError, TypeError: what rank 0 sent describes nothing.
    """
    length = int(channel.broadcast(torch.zeros(8, dtype=torch.uint8)).view(torch.int64).item())
    if not 0 < length <= _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"a description of {length} bytes")
    described = channel.broadcast(torch.zeros(length, dtype=torch.uint8))
    entries: Any = json.loads(bytes(described.cpu().numpy()))
    return [(str(name), torch.empty(shape, dtype=_dtype(dtype), device="meta")) for name, shape, dtype in entries]


def receive_bucket(channel: Channel, bucket: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the described tensors of a bucket with their data. Raises: ChannelFailed."""
    sizes = [tensor.nbytes for _, tensor in bucket]
    data = channel.broadcast(torch.empty(sum(sizes), dtype=torch.uint8))
    return [
        (name, part.clone().view(tensor.dtype).view(tensor.shape))
        for (name, tensor), part in zip(bucket, data.split(sizes), strict=True)
    ]


def buckets_of(named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield tensors in the same order, those together that are sent at once."""
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


@contextmanager
def _errors_raised() -> Iterator[None]:
    """Let groups of NCCL that are made meanwhile raise errors when they wait, and end no process."""
    before = os.environ.get(_BLOCKING_WAIT)
    os.environ[_BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BLOCKING_WAIT]
        else:
            os.environ[_BLOCKING_WAIT] = before


def _dtype(name: str) -> torch.dtype:
    dtype: object = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no type of numbers")
    return dtype


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
