"""The processes that learn together: who they are, and what they say to each other."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from envgym.errors import sentence
from envgym.runtime.processes.group import PeerLost
from envgym.trainer.learner.ranks.meeting import Meeting, interface_to

DEADLINE_S: Final = 600.0
"""A collective that takes longer has lost a rank."""
_IDLE: Final = timedelta(days=365)
"""For which ranks wait to be told what to do next: while rank 0 samples, they have nothing to do."""
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name the network interface to listen on."""
_LOST: Final = ("gloo", "connection closed", "connection reset", "timed out", "nccl", "broken pipe", "socket")
"""What torch writes about a peer that is gone."""


class RankGroup:
    """This process among those that learn together."""

    def __init__(self, device: torch.device, meeting: Meeting, *, deadline_s: float = DEADLINE_S) -> None:
        """Meet the others.

        Args:
            device: of this rank.
            meeting: who meets, and where.
            deadline_s: seconds that a collective may take.

        Raises: PeerLost: the others do not come.
        """
        self.device = device
        limit = timedelta(seconds=deadline_s)
        backend = "nccl" if device.type == "cuda" else "gloo"
        with lost_ranks_told(), _listening(meeting):
            dist.init_process_group(
                backend, init_method=meeting.init_method, rank=meeting.rank, world_size=meeting.size, timeout=limit
            )
            self._objects = dist.new_group(backend="gloo", timeout=limit)
            self._orders = dist.new_group(backend="gloo", timeout=_IDLE if meeting.rank else limit)
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.mesh = init_device_mesh(device.type, (self.size,))
            dist.barrier(group=self._objects)  # all have met: nobody looks for the place any more
        if self.is_first:
            meeting.leave()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which leads."""
        return self.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors; in place."""
        dist.all_reduce(numbers)
        return numbers

    def max(self, number: int) -> int:
        """Return the largest of all ranks' numbers."""
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: Any) -> list[Any]:  # anything that pickles
        """Return the values of all ranks, their tensors on the CPU."""
        payloads: list[bytes] = [b""] * self.size
        dist.all_gather_object(payloads, _packed(value), group=self._objects)
        return [_unpacked(data) for data in payloads]

    def tell(self, value: Any) -> None:  # as above
        """Tell the other ranks something, which `hear` returns there; only rank 0 calls it."""
        dist.broadcast_object_list([_packed(value)], src=0, group=self._orders)

    def hear(self) -> Any:  # as above
        """Wait for the next value that rank 0 sends, and return it."""
        payloads: list[bytes] = [b""]
        dist.broadcast_object_list(payloads, src=0, group=self._orders)
        return _unpacked(payloads[0])

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _packed(value: Any) -> bytes:  # as above
    buffer = BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:  # as above
    return torch.load(BytesIO(data), map_location="cpu", weights_only=False)  # from a rank of this run


@contextmanager
def _listening(meeting: Meeting) -> Iterator[None]:
    """Let ranks of one machine listen to no other, and others where the network is that rank 0 is reached by."""
    interface = ("lo" if sys.platform == "linux" else "lo0") if meeting.is_local else interface_to(meeting.address)
    named = {} if interface is None else dict.fromkeys(_INTERFACES, interface)
    variables = {name: value for name, value in named.items() if name not in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextmanager
def lost_ranks_told() -> Iterator[None]:
    """Say in a sentence that another rank is gone. Raises: PeerLost: it is."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        is_lost = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST)
        if isinstance(error, torch.OutOfMemoryError) or not is_lost:
            raise
        do = "look at what that rank wrote last, then continue with --resume"
        must = "answer until the run ends"
        raise PeerLost(sentence("every learner rank", must, reason, where="ranks", do=do)) from error
