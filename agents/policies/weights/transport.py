"""How new weights get from the learner to the servers: by files, in shared memory, or over a process group."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from envgym.agents.policies.weights.channel import group_device
from envgym.agents.policies.weights.collective import GroupAddress, RunGroup, local_address
from envgym.agents.policies.weights.shared_memory import SharedWeights
from envgym.agents.policies.weights.weight_store import StoredWeights, WeightStore, compute_digests
from envgym.core.json_types import JsonObject


class WeightUpdate(NamedTuple):
    """One version, ready to be taken by any number of servers."""

    version: int
    update_info: JsonObject
    """Body of `/update_weights`, under its key of this name."""
    digests: Mapping[str, str]
    """Name -> sha256 of the tensor's bytes: what `/weight_checker` must find."""
    sender: "GroupSender | None" = None
    """Sends the weights while `/update_weights` runs; None: the server fetches them."""
    base: "WeightUpdate | None" = None
    """The weights that these are the adapters of, which a server must have first; None: these are all weights."""

    def on_base(self, base: "WeightUpdate | None") -> "WeightUpdate":
        """Return the update as one of adapters on a base, whose digests then count too; None: return it as it is."""
        if base is None:
            return self
        info, digests = {**self.update_info, "has_base": True}, {**base.digests, **self.digests}
        return self._replace(update_info=info, digests=digests, base=base)


class WeightTransport(Protocol):
    """Makes weights available to servers, or sends them while `/update_weights` runs."""

    name: str
    """Among the `transports` that a server takes."""

    def publish(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        """Make a version available, until the one after the next.

        Args:
            named_tensors: all weights; with a base, the matrices of adapters.
            version: of the weights.
            base: as `publish_base` returned it; None: there are no adapters.
        """
        ...

    def publish_base(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        """Make all weights available without their adapters, until the next base."""
        ...

    def finish(self, taking: Collection[int] = ()) -> None:
        """Free what is not needed any more, as every server that is in use has the newest version.

        Args:
            taking: versions that servers are taking which are not in use yet.
        """
        ...

    def close(self) -> None:
        """Free everything, as no server is brought weights any more; may be called twice."""
        ...


class FileTransport:
    """Weights as versioned directories that servers read."""

    name = "files"

    def __init__(self, directory: Path | None = None, *, keep: int = 2) -> None:
        """Write to a directory; None: to a temporary one, which `close` removes. Arguments as for `WeightStore`."""
        self._temporary: TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = TemporaryDirectory(prefix="envgym-weights-")
            directory = Path(self._temporary.name)
        self._store = WeightStore(directory, keep=keep)

    def publish(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        return update_of(self._store.write(named_tensors, version, base=None if base is None else base.version))

    def publish_base(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        bases = self._store.bases()
        update = update_of(bases.write(named_tensors, version))
        bases.remove_old()
        return update

    def finish(self, taking: Collection[int] = ()) -> None:
        self._store.remove_old(taking)

    def close(self) -> None:
        """Remove the directory where it is a temporary one."""
        if self._temporary is not None:
            self._temporary.cleanup()


def update_of(stored: StoredWeights) -> WeightUpdate:
    """Return the update that brings a stored version, with its base where it has one."""
    update = WeightUpdate(stored.version, {"directory": str(stored.directory)}, stored.digests)
    return update.on_base(None if stored.base is None else update_of(StoredWeights.read(stored.base)))


class SharedTransport:
    """Weights in memory that servers on this machine map: of the GPU that they share, or of the machine."""

    name = "ipc"

    def __init__(self, device: torch.device) -> None:
        """Prepare to hold a copy of the weights, and a second one during an update, on the learner's device."""
        self._device = device
        self._versions: list[tuple[int, SharedWeights]] = []
        self._bases: list[SharedWeights] = []

    def publish(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        """Copy a version. Raises: InvalidInput: there is no room, or the system has no such memory."""
        shared = SharedWeights(named_tensors, self._device)
        self._versions.append((version, shared))
        return _shared_update(shared, version).on_base(base)

    def publish_base(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        """Copy a base; the one before stays until `finish`, as servers may be taking it. Raises: as `publish`."""
        self._bases.append(SharedWeights(named_tensors, self._device))
        return _shared_update(self._bases[-1], version)

    def finish(self, taking: Collection[int] = ()) -> None:
        """Free all but the newest version, which servers that return are brought."""
        free = [entry for entry in self._versions[:-1] if entry[0] not in taking]
        self._versions = [entry for entry in self._versions if entry not in free]
        for _, shared in free:
            shared.close()
        while len(self._bases) > 1 and not taking:
            self._bases.pop(0).close()

    def close(self) -> None:
        while self._versions:
            self._versions.pop()[1].close()
        while self._bases:
            self._bases.pop().close()


def _shared_update(shared: SharedWeights, version: int) -> WeightUpdate:
    return WeightUpdate(version, {"shared": shared.describe()}, compute_digests(shared.tensors()))


class GroupSender:
    """Sends one version over the groups of a transport; its methods block."""

    def __init__(self, transport: "GroupTransport", named_tensors: Sequence[tuple[str, Tensor]]) -> None:
        self._transport, self._tensors = transport, named_tensors

    @property
    def timeout_s(self) -> float:
        """Longest wait for a server that does nothing."""
        return self._transport.timeout_s

    def find_groups(self, servers: Mapping[str, tuple[str, int]]) -> list[RunGroup]:
        """Return groups for these servers and no others: those of the update before, if they have the same servers.

        Args:
            servers: name -> host and port. A server to which there is no way is in none of the groups.
        """
        return self._transport.find_groups(servers)

    def release(self, groups: Iterable[RunGroup]) -> None:
        """Let go of groups from `find_groups`. A sound one is kept."""
        self._transport.release(groups)

    def send(self, group: RunGroup) -> None:
        """Send the version. Raises: ChannelFailed: no server of the group is left."""
        group.send(self._tensors)


class GroupTransport:
    """Weights over a process group with all servers; the newest version stays in this process's memory."""

    def __init__(self, backend: str, *, device: torch.device, timeout_s: float = 100.0) -> None:
        """Prepare to send.

        Args:
            backend: `nccl` or `gloo`.
            device: of the learner.
            timeout_s: longest wait for a server that does nothing.

        Raises: InvalidInput: the device has no such way.
        """
        self.name, self.timeout_s = backend, timeout_s
        self.device = group_device(backend, device)
        self.groups: list[RunGroup] = []
        self._hosts: dict[str, str] = {}
        """Server -> address of this machine that it reaches."""
        self._used = set[RunGroup]()
        """Groups of updates that have not ended."""
        self._changes = threading.Lock()

    def publish(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        """Copy a version, tensor by tensor, so that nothing is gathered any more when it is sent."""
        copies = [(name, tensor.detach().to("cpu", copy=True).contiguous()) for name, tensor in named_tensors]
        update = WeightUpdate(version, {"from_group": True}, compute_digests(copies), GroupSender(self, copies))
        return update.on_base(base)

    def publish_base(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        return self.publish(named_tensors, version)

    def finish(self, taking: Collection[int] = ()) -> None:
        """Do nothing: the version is kept for servers that return."""

    def close(self) -> None:
        while self.groups:
            self.groups.pop().close()

    def find_groups(self, servers: Mapping[str, tuple[str, int]]) -> list[RunGroup]:
        """As `GroupSender.find_groups`."""
        hosts = _common_hosts({server: host for server in servers if (host := self._host(server, *servers[server]))})
        with self._changes:
            groups: list[RunGroup] = []
            for host in sorted(set(hosts.values())):
                # Neighbours in the chain are those of one machine, so that its network carries the weights once.
                members = sorted((server for server in hosts if hosts[server] == host), key=lambda name: servers[name])
                groups.append(self._find_group(host, members))
            for group in self.groups:  # an update uses all servers that are in use, so the others are not used again
                if group not in self._used:
                    group.is_sound = False
            self._close_unsound()
            return groups

    def release(self, groups: Iterable[RunGroup]) -> None:
        """As `GroupSender.release`."""
        with self._changes:
            self._used -= set(groups)
            self._close_unsound()

    def _find_group(self, host: str, members: Sequence[str]) -> RunGroup:
        for group in self.groups:
            is_same = (group.host, group.servers) == (host, tuple(members))
            if is_same and group.is_sound and group not in self._used:
                break
        else:
            group = RunGroup(host, members, self.name, self.device, timeout_s=self.timeout_s)
            self.groups.append(group)
        self._used.add(group)
        return group

    def _close_unsound(self) -> None:
        for group in [group for group in self.groups if not group.is_sound and group not in self._used]:
            self.groups.remove(group)
            group.close()
        members = {server for group in self.groups for server in group.servers}
        self._hosts = {server: host for server, host in self._hosts.items() if server in members}

    def _host(self, server: str, host: str, port: int) -> str | None:
        address = self._hosts.get(server)
        if address is None:
            try:
                address = self._hosts[server] = local_address(host, port)
            except OSError:
                return None
        return address


def _common_hosts(hosts: Mapping[str, str]) -> dict[str, str]:
    """Replace loopback by an address that other machines reach, if there is one, as all servers reach each other."""
    others = [host for host in hosts.values() if not ip_address(host).is_loopback]
    if not others:
        return dict(hosts)
    return {server: min(others) if ip_address(host).is_loopback else host for server, host in hosts.items()}


def init_info(address: GroupAddress) -> JsonObject:
    """Return the body of `/init_weight_transfer_engine`."""
    return asdict(address)
