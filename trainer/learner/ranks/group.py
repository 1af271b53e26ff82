"""The processes that learn together: who they are, and what they say to each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from envgym.errors import RunError, SettingsError, sentence

DEADLINE_S: Final = 600.0
"""A collective that takes longer has lost a rank."""
_LOST: Final = ("gloo", "connection closed", "connection reset", "timed out", "nccl", "broken pipe", "socket")
"""What torch writes about a peer that is gone."""


class RankGroup:
    """This process among those that learn together."""

    def __init__(self, device: torch.device, *, deadline_s: float = DEADLINE_S) -> None:
        """Meet the others, as the variables of torchrun say.

        Args:
            device: of this rank.
            deadline_s: seconds that a collective may take.

        Raises: SettingsError: a variable is missing. RunError: the others do not come.
        """
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        do = "start it with torchrun"
        SettingsError.unless(not missing, "ranks", "know each other", f"no {missing}", where="environment", do=do)
        self.device = device
        limit = timedelta(seconds=deadline_s)
        backend = "nccl" if device.type == "cuda" else "gloo"
        with lost_ranks_told():
            dist.init_process_group(backend, timeout=limit)
            self._objects = dist.new_group(backend="gloo", timeout=limit)
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.mesh = init_device_mesh(device.type, (self.size,))

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
        buffer = BytesIO()
        torch.save(value, buffer)
        found: list[bytes] = [b""] * self.size
        dist.all_gather_object(found, buffer.getvalue(), group=self._objects)
        return [torch.load(BytesIO(data), map_location="cpu", weights_only=False) for data in found]

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def lost_ranks_told() -> Iterator[None]:
    """Say in a sentence that another rank is gone. Raises: RunError: it is."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        is_lost = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST)
        if isinstance(error, torch.OutOfMemoryError) or not is_lost:
            raise
        do = "look at what that rank wrote last, then continue with --resume"
        must = "answer until the run ends"
        raise RunError(sentence("every learner rank", must, reason, where="ranks", do=do)) from error
