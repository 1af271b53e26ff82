"""Changing the weights that a transformers policy server samples from: paused, updated, resumed, or broken for good.

While sampling is paused, requests stand still between two tokens. An update that fails leaves the weights broken, as
some layers may be new: then requests under way end, and nothing is sampled any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from envgym.agents.policies.serving.collective import GroupAddress, WeightGroup, join
from envgym.agents.policies.serving.weight_store import StoredWeights, compute_digests
from envgym.agents.policies.transformers import TransformersPolicy, copy_weights, pair_weights
from envgym.errors import InvalidInput, PolicyFailure

T = TypeVar("T")
_ALL: Final = "send every weight; merged_weights(model) does, with adapters merged"


class ServerUnavailable(Exception):
    """The request cannot be answered in the state that the server is in."""


class ServedWeights:
    """The weights of a policy, and where their update stands."""

    def __init__(self, policy: TransformersPolicy, module: nn.Module) -> None:
        """Take a policy, and the module whose weights it samples from."""
        self._policy, self._module = policy, module
        self.hold: ExitStack | None = None
        """What keeps sampling paused; None: it is not."""
        self.broken: str | None = None
        """Why nothing can be sampled any more."""
        self.group: WeightGroup | None = None
        """With the run that brings weights, where they come over one."""
        self._name_weights: Callable[[int], None] = policy.set_version
        self._is_updating = False
        self._sampling: set[asyncio.Task[Any]] = set()
        """Requests that sample."""
        self._changes = asyncio.Lock()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self._module.parameters()).device

    def close(self) -> None:
        """Let go of the policy, and of the run that brings weights."""
        if self.hold is not None:
            self.hold.close()
        self._leave_group()

    def _leave_group(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None

    def check_sound(self) -> None:
        """See that sampling goes on. Raises: ServerUnavailable: it does not, ever."""
        if self.broken is not None:
            raise ServerUnavailable(f"the server is broken, as {self.broken}; start it again.")

    async def sample(self, sampling: Awaitable[T]) -> T:
        """Sample, and end when a weight update fails. Raises: ServerUnavailable: one did."""
        task = asyncio.current_task()
        assert task is not None, "a request is a task"
        self._sampling.add(task)
        try:
            return await sampling
        except asyncio.CancelledError:
            if self.broken is None:
                raise
            task.uncancel()
            self.check_sound()
            raise
        finally:
            self._sampling.discard(task)

    async def pause(self) -> None:
        """Hold sampling off between two tokens."""
        async with self._changes:
            if self.hold is None:
                hold = ExitStack()
                self._name_weights = await asyncio.to_thread(hold.enter_context, self._policy.hold())
                self.hold = hold

    async def resume(self) -> None:
        """Let sampling go on. Raises: ServerUnavailable: an update is under way."""
        async with self._changes:
            if self._is_updating:
                raise ServerUnavailable(
                    "the server is in the middle of a weight update; send /finish_weight_update first."
                )
            if self.hold is not None:
                self.hold.close()
                self.hold = None

    async def join(self, address: GroupAddress) -> None:
        """Meet a run in a process group. Raises: PolicyFailure: nobody is there. InvalidInput: as `join`."""
        async with self._changes:
            self._leave_group()
            try:
                self.group = await asyncio.to_thread(join, address, self.device)
            except (OSError, RuntimeError) as error:
                raise PolicyFailure(f"the server found nobody in the group: {error}".splitlines()[0]) from error

    async def start(self) -> None:
        """Begin an update. Raises: ServerUnavailable: sampling is not paused, or one is under way."""
        async with self._changes:
            if self.hold is None or self._is_updating:
                do = "send /finish_weight_update" if self._is_updating else "send /pause?mode=keep"
                raise ServerUnavailable(f"the server must be paused and not be updated already; {do} first.")
            self._is_updating = True

    async def load(self, directory: Path) -> None:
        """Load a stored version. Raises: as `_change`."""
        await self._change(lambda: self._load(directory), "/update_weights")

    async def receive(self, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Take a version as it comes, over a group or from shared memory. Raises: as `_change`."""
        await self._change(lambda: receive_weights(self._module, named_tensors), "/update_weights")

    async def finish(self, version: int) -> None:
        """End the update. Raises: as `_change`."""
        await self._change(lambda: self._name_weights(version), "/finish_weight_update")
        self._is_updating = False

    async def rename(self, version: int) -> None:
        """Name the weights that are there."""
        async with self._changes:
            await asyncio.to_thread(self._policy.set_version if self.hold is None else self._name_weights, version)

    async def compute_digests(self) -> dict[str, str]:
        """Return the digest of each weight."""
        async with self._changes:
            return await asyncio.to_thread(self._compute_digests)

    async def _change(self, change: Callable[[], None], where: str) -> None:
        """Do a part of an update.

        Raises: ServerUnavailable: none is under way. PolicyFailure: it failed, and all is broken.
        """
        async with self._changes:
            if not self._is_updating:
                raise ServerUnavailable(f"the server is not being updated; send /start_weight_update before {where}.")
            try:
                await asyncio.to_thread(change)
            except Exception as error:  # whatever it was: some weights may be new
                self.broken = f"a weight update failed: {type(error).__name__}: {error}".rstrip(".: ")
                for task in self._sampling:
                    task.cancel()
                raise PolicyFailure(f"{self.broken}.") from error

    def _load(self, directory: Path) -> None:
        load_weights(self._module, StoredWeights.read(directory))

    def _compute_digests(self) -> dict[str, str]:
        with nullcontext() if self.hold is not None else self._policy.hold():
            return compute_digests(self._module.named_parameters())


def load_weights(module: nn.Module, stored: StoredWeights) -> None:
    """Copy a stored version into a module.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; nothing was copied.
    """
    pairs: list[tuple[Tensor, Tensor]] = pair_weights(module, stored.tensors())
    own = {name for name, _ in module.named_parameters()}
    if missing := sorted(own - stored.digests.keys()):
        must, got = f"hold all {len(own)}", f"{len(own) - len(missing)}, without {missing[0]}"
        raise InvalidInput.of("new weights", must, got, where=str(stored.directory), do=_ALL)
    _check_types(pairs, str(stored.directory))
    copy_weights(pairs)


def receive_weights(module: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy weights into a module as they come.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; some were copied.
    """
    left = {name for name, _ in module.named_parameters()}
    for name, tensor in named_tensors:
        left.discard(name)
        pairs = pair_weights(module, [(name, tensor)])
        _check_types(pairs, name)
        copy_weights(pairs)
    InvalidInput.unless(
        not left, "new weights", "be all", f"some without {min(left, default='')}", where="weight update", do=_ALL
    )


def _check_types(pairs: Iterable[tuple[Tensor, Tensor]], where: str) -> None:
    """Compare types of weights. Raises: InvalidInput: one is not the server's."""
    for target, tensor in pairs:
        do = "serve the model in the type that it is trained in (--dtype)"
        must = f"be of the server's {target.dtype}"
        InvalidInput.unless(target.dtype == tensor.dtype, "new weights", must, tensor.dtype, where=where, do=do)
