"""Weights from the run to several policy servers at once, over one group of processes.

The run is rank 0 and listens on one address. Each server reports to the run that it is there. The run decides which
servers take part, and all of these open a channel. If a server dies or does nothing in time, the channel ends for all.
Then every server that lacks weights reports again, and the run opens a channel to these servers and sends once more.
If this fails again, as servers cannot reach each other, each server gets a channel of its own, one after the other.
A server whose own channel fails is missed. So each server receives all weights in the end, or ends its update with an
error. A new channel brings all bytes again, and a server discards those that it has received before.
"""

import json
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore  # typed there

from envgym.agents.policies.weights.channel import (
    Channel,
    ChannelFailed,
    buckets_of,
    group_device,
    receive_bucket,
    receive_description,
    send_tensors,
)
from envgym.errors import InvalidInput

_MAX_TIMEOUT_S: Final = 3600.0
_MAX_RANKS: Final = 4096
_POLL_S: Final = 0.005
_PATIENCE: Final = 2
"""Waits that the run grants a server to notice that the channel has failed."""
_CHAINS: Final = 2
"""Channels to all servers that may fail in a group. The next ones are to one server each, one after the other."""
_LEFT: Final = "this process has left the group"
_SERVER_PATIENCE: Final = 6
"""Waits that a server grants the run, which itself may wait for a server several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """Where a group meets: what `/init_weight_transfer_engine` is told."""

    host: str
    port: int
    backend: str
    """`nccl` or `gloo`."""
    timeout_s: float
    """Longest wait for a process that does nothing."""
    rank: int
    """Of the server; the run has rank 0."""
    world_size: int
    """The run and all of its servers in this group."""

    @classmethod
    def parse(cls, fields: object, *, where: str) -> "GroupAddress":
        """Read what a client sent. Raises: InvalidInput: it is no address, or the rank is outside of the group."""
        names = {"host": str, "port": int, "backend": str, "timeout_s": (int, float), "rank": int, "world_size": int}
        data: Any = fields
        is_address = (
            isinstance(data, dict)
            and data.keys() == names.keys()
            and all(isinstance(data[name], kind) for name, kind in names.items())  # type: ignore[arg-type]  # of types
            and 0 < data["port"] < 1 << 16
            and 0 < data["timeout_s"] <= _MAX_TIMEOUT_S
        )
        do = f"send {', '.join(names)}"
        InvalidInput.unless(is_address, "init_info", "say where the group meets", fields, where=where, do=do)
        size = data["world_size"]
        must, do = f"be at most {_MAX_RANKS}", "send weights to fewer servers at once"
        InvalidInput.unless(size <= _MAX_RANKS, "world_size", must, size, where=where, do=do)
        must, do = f"be from 1 to world_size - 1, which is {size - 1}", "send the rank of a server; 0 is the run's"
        InvalidInput.unless(0 < data["rank"] < size, "rank", must, data["rank"], where=where, do=do)
        return cls(**data)


class RunGroup:
    """The run's side of a group. Its methods block; `miss` may be called from another thread meanwhile."""

    def __init__(
        self, host: str, servers: Sequence[str], backend: str, device: torch.device, *, timeout_s: float
    ) -> None:
        """Listen on an address of this machine that the servers reach. NCCL also listens on interfaces that it chooses.

        Args:
            host: the address.
            servers: names of the servers, which have the ranks from 1 on in this order.
            backend: `nccl` or `gloo`.
            device: where the tensors are sent from.
            timeout_s: longest wait for a server that does nothing.
        """
        self.servers, self.host = tuple(servers), host
        self.is_sound = True
        """Whether all servers took part in everything so far; else the next update needs a new group."""
        self._ranks = {server: rank for rank, server in enumerate(self.servers, 1)}
        self._missed: dict[int, str] = {}
        """Rank of a server that has failed -> why."""
        self._members = set[int]()
        """Servers of the newest channel."""
        self._is_alone = False
        """Whether that channel is to one server only, as channels to several servers have failed."""
        self._backend, self._device, self.timeout_s = backend, device, timeout_s
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.bind((host, 0))
        listening.listen()
        self.port: int = listening.getsockname()[1]
        limit, fd = timedelta(seconds=timeout_s), listening.detach()
        size = len(self.servers) + 1
        self._store = TCPStore(
            host, self.port, size, True, limit, wait_for_workers=False, use_libuv=True, master_listen_fd=fd
        )
        self._channel: Channel | None = None
        self._num_channels, self._num_failed, self._num_sent = 0, 0, 0
        self._is_closed = False
        self._working = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the servers were met."""
        return self._num_channels > 0

    def address(self, server: str) -> GroupAddress:
        """Return the address for a server, with its rank."""
        return GroupAddress(
            host=self.host,
            port=self.port,
            backend=self._backend,
            timeout_s=self.timeout_s,
            rank=self._ranks[server],
            world_size=len(self.servers) + 1,
        )

    def open(self) -> None:
        """Wait for the servers, and connect to those that come. Raises: ChannelFailed: none does."""
        with self._working:
            self._open(self._ranks.values())

    def send(self, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Send tensors until every server has them or is missed. Raises: ChannelFailed: no server is left."""
        with self._working:
            self._num_sent += 1
            failure, lacking = "a server did not receive everything", set(self._ranks.values())
            if not self._is_alone and self._members != lacking - self._missed.keys():
                self._leave()
            while lacking := lacking - self._missed.keys():
                try:
                    if self._channel is None:
                        self._open(lacking)
                    assert self._channel is not None, "it was opened"
                    send_tensors(self._channel, named_tensors)
                except ChannelFailed as error:
                    failure = str(error)
                    self._leave()
                if lacking := self._find_lacking(lacking):
                    self._leave()
                if failed := lacking & self._members:
                    self._count_failure(failed, failure)
            if len(self._missed) == len(self.servers):
                raise ChannelFailed(f"no server of the group is left: {list(self._missed.values())[-1]}")

    def miss(self, server: str) -> None:
        """Wait no more for a server, which has failed."""
        self._miss({self._ranks[server]}, "the server has failed")

    def missed_reason(self, server: str) -> str | None:
        """Return why the run does not wait for a server any more; None: the run waits for it."""
        return self._missed.get(self._ranks[server])

    def close(self) -> None:
        """Leave the group, whatever is under way."""
        self._is_closed, self.is_sound = True, False
        channel = self._channel  # another thread may leave it meanwhile
        if channel is not None:
            channel.close()

    def _miss(self, ranks: Collection[int], reason: str) -> None:
        self._missed = dict.fromkeys(ranks, reason) | self._missed
        self.is_sound = False

    def _leave(self) -> None:
        self.is_sound = False
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _count_failure(self, ranks: Collection[int], reason: str) -> None:
        """Note that a channel has failed for some of its servers; one that was alone with the run is missed."""
        self.is_sound = False
        self._num_failed += 1
        if self._is_alone:
            self._miss(ranks, reason)

    def _open(self, ranks: Collection[int]) -> None:
        """Connect to servers that report in time, and miss those that do not. Raises: ChannelFailed: none reports."""
        while True:
            self._num_channels += 1
            number = self._num_channels
            here = sorted(self._wait_for(ranks, f"{number}/here"))
            self._is_alone = self._num_failed >= _CHAINS
            if self._is_alone and here:
                here = [here[number % len(here)]]  # another one each time
            self._members = set(here)
            later = set(self._ranks.values()) - self._members - self._missed.keys()
            self._store.set(f"{number}/members", json.dumps([[0, *here], sorted(later)]))
            if not here:
                raise ChannelFailed("no server has come")
            store, ways = PrefixStore(f"{number}", self._store), (self._backend, self._device)
            try:
                self._channel = Channel.open(
                    store, 0, len(here) + 1, *ways, own_host=self.host, timeout_s=self.timeout_s
                )
            except ChannelFailed as error:
                self._count_failure(here, str(error))
                continue
            if self._is_closed:
                self._leave()
                raise ChannelFailed(_LEFT)
            return

    def _find_lacking(self, ranks: Collection[int]) -> set[int]:
        """Return the servers that have reported again, as they did not receive everything; miss silent ones."""
        whole = f"whole/{self._num_sent}"
        reported = self._wait_for(ranks, whole, f"{self._num_channels + 1}/here")
        return {rank for rank in reported if not self._store.check([f"{whole}/{rank}"])}

    def _wait_for(self, ranks: Collection[int], *keys: str) -> set[int]:
        """Return the servers that have set one of their keys; miss those that have not after a time."""
        waiting, deadline = set(ranks), time.monotonic() + _PATIENCE * self.timeout_s
        while waiting := waiting - self._missed.keys():
            waiting = {rank for rank in waiting if not any(self._store.check([f"{key}/{rank}"]) for key in keys)}
            if self._is_closed:
                raise ChannelFailed(_LEFT)
            if time.monotonic() > deadline:
                self._miss(waiting, f"the server did nothing for {self.timeout_s:g} s")
            elif waiting:
                time.sleep(_POLL_S)
        return set(ranks) - self._missed.keys()


class WeightGroup:
    """A server's side of a group."""

    def __init__(self, address: GroupAddress, device: torch.device) -> None:
        """Report to the run, and connect to it and to other servers.

        Args:
            address: where the group meets.
            device: where the tensors are received.

        Raises: RuntimeError, OSError: the run is not there, or did not wait. InvalidInput: a device that cannot.
        """
        self._address, self._device = address, group_device(address.backend, device)
        limit, size = timedelta(seconds=address.timeout_s), address.world_size
        self._store = TCPStore(address.host, address.port, size, False, limit, wait_for_workers=False, use_libuv=True)
        self._store.set_timeout(_SERVER_PATIENCE * limit)
        self._own_host = local_address(address.host, address.port)
        self._channel: Channel | None = None
        self._num_channels, self._num_received, self._next_bucket = 0, 0, 0
        self._is_closed = False
        self._open()

    def receive_description(self) -> list[tuple[str, Tensor]]:
        """Return the tensors that will be sent, without their data: on the device `meta`.

        Raises: RuntimeError: the run has gone, or went on without this server. ValueError, TypeError: what was sent
            describes nothing.
        """
        self._num_received += 1
        while True:
            try:
                return self._restart_stream()
            except ChannelFailed:
                self._leave()

    def receive(self, described: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that `receive_description` returned, with their data.

        Raises: RuntimeError: as `receive_description`.
        """
        described = list(described)
        buckets, whole = list(buckets_of(described)), f"whole/{self._num_received}/{self._address.rank}"
        if not buckets:
            self._store.set(whole, "")
        for number in range(len(buckets)):
            received = self._receive_bucket(described, buckets, number)
            if number == len(buckets) - 1:
                self._store.set(whole, "")
            yield from received

    def close(self) -> None:
        """Leave the group, whatever is under way."""
        self._is_closed = True
        channel = self._channel  # another thread may leave it meanwhile
        if channel is not None:
            channel.close()

    def _receive_bucket(
        self, described: list[tuple[str, Tensor]], buckets: list[list[tuple[str, Tensor]]], number: int
    ) -> list[tuple[str, Tensor]]:
        """Return a bucket's tensors. A new channel begins with the first bucket, so earlier ones are skipped."""
        while True:
            try:
                if self._channel is None and _signature(self._restart_stream()) != _signature(described):
                    raise RuntimeError("the run began again with other weights")
                assert self._channel is not None, "it was opened"
                received = receive_bucket(self._channel, buckets[self._next_bucket])
                self._next_bucket += 1
                if self._next_bucket > number:
                    return received
            except ChannelFailed:
                self._leave()

    def _restart_stream(self) -> list[tuple[str, Tensor]]:
        if self._channel is None:
            self._open()
        assert self._channel is not None, "it was opened"
        self._next_bucket = 0
        return receive_description(self._channel)

    def _leave(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> None:
        """Report to the run until it opens a channel. Raises: RuntimeError: the run has gone, or did not wait."""
        rank, backend, timeout_s = self._address.rank, self._address.backend, self._address.timeout_s
        while not self._is_closed:
            self._num_channels += 1
            number = self._num_channels
            self._store.set(f"{number}/here/{rank}", "")
            members, later = json.loads(self._store.get(f"{number}/members"))
            if rank in later:
                continue
            if rank not in members:
                raise RuntimeError("the run did not wait for this server any more")
            store, place = PrefixStore(f"{number}", self._store), members.index(rank)
            with suppress(ChannelFailed):
                self._channel = Channel.open(
                    store,
                    place,
                    len(members),
                    backend,
                    self._device,
                    own_host=self._own_host,
                    timeout_s=timeout_s,
                )
                if not self._is_closed:
                    return
        self._leave()
        raise RuntimeError("the server has left the group")


def local_address(host: str, port: int) -> str:
    """Return the address of this machine from which another one is reached. Raises: OSError: it is not."""
    with socket.create_connection((host, port), timeout=10) as connection:
        address: str = connection.getsockname()[0]
    return address


def _signature(described: Iterable[tuple[str, Tensor]]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in described]
