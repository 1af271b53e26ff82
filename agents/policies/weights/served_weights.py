"""Changing the weights that a transformers policy server samples from: paused, updated, resumed, or broken for good.

While sampling is paused, requests stand still between two tokens. What an update brings is read and checked as a whole
before any weight changes: where it is refused, sampling goes on with the old weights. Where it fails later, as when the
run dies in the middle of a group's stream, some layers may be new: then the server is broken, requests under way end,
and nothing is sampled any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from envgym.agents.models.weights import LowRankChange
from envgym.agents.policies.engine.policy import TransformersPolicy, copy_weights, pair_weights
from envgym.agents.policies.weights.adapted_base import AdaptedBase, read_changes
from envgym.agents.policies.weights.channel import group_device
from envgym.agents.policies.weights.collective import GroupAddress, WeightGroup
from envgym.agents.policies.weights.shared_memory import read_shared
from envgym.agents.policies.weights.weight_store import StoredWeights
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.event_loop import in_daemon_thread

T = TypeVar("T")
_ALL: Final = "send every weight; merged_weights(model) does, with adapters merged"


class ServerUnavailable(Exception):
    """The request cannot be answered in the state that the server is in."""


class ServedWeights:
    """The weights of a policy, and where their update stands."""

    def __init__(self, policy: TransformersPolicy, module: nn.Module) -> None:
        self._policy, self._module = policy, module
        self.hold: ExitStack | None = None
        """What keeps sampling paused; None: it is not."""
        self.broken: str | None = None
        """Why nothing can be sampled any more."""
        self.group: WeightGroup | None = None
        """With the run that brings weights, where they come over one."""
        self.base = AdaptedBase()
        """Of weights that have adapters added."""
        self._name_weights: Callable[[int], None] = policy.set_version
        self._is_updating, self._num_joins = False, 0
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
            self._let_go()

    async def join(self, address: GroupAddress) -> None:
        """Meet a run in a process group; other requests are answered meanwhile.

        Raises: PolicyFailure: nobody is there; sampling goes on. InvalidInput: as `WeightGroup`.
        """
        self._num_joins += 1
        number = self._num_joins
        self._leave_group()
        group_device(address.backend, self.device)
        try:
            group = await in_daemon_thread(lambda: WeightGroup(address, self.device))
        except Exception as error:
            async with self._changes:
                self._let_go()
            reason = next(iter(str(error).splitlines()), "")
            raise PolicyFailure(f"the server found nobody in the group: {reason}") from error
        if number != self._num_joins:
            group.close()
            raise PolicyFailure("the server left the group, as it was sent to another.")
        self.group = group

    async def start(self) -> None:
        """Begin an update. Raises: ServerUnavailable: sampling is not paused, or one is under way."""
        async with self._changes:
            if self.hold is None or self._is_updating:
                do = "send /finish_weight_update" if self._is_updating else "send /pause?mode=keep"
                raise ServerUnavailable(f"the server must be paused and not be updated already; {do} first.")
            self._is_updating = True

    async def load(self, directory: Path, *, has_base: bool = False) -> None:
        """Load a stored version. Arguments and errors: as `_take`."""
        where = str(directory)
        await self._take(lambda: list(StoredWeights.read(directory).tensors()), has_base=has_base, where=where)

    async def map(self, described: Mapping[str, Any], *, has_base: bool = False) -> None:  # JSON
        """Take a version from memory that the run shares. Arguments and errors: as `_take`."""
        await self._take(lambda: list(read_shared(described)), has_base=has_base, where="shared memory")

    async def receive(self, group: WeightGroup, *, has_base: bool = False) -> None:
        """Take a version as a group brings it. Arguments and errors: as `_take`."""
        where = "process group"
        await self._take(group.receive_description, has_base=has_base, where=where, fetch=group.receive)

    async def _take(
        self,
        read: Callable[[], list[tuple[str, Tensor]]],
        *,
        has_base: bool,
        where: str,
        fetch: Callable[[list[tuple[str, Tensor]]], Iterable[tuple[str, Tensor]]] = list,
    ) -> None:
        """Take a version.

        Args:
            read: returns the tensors, perhaps without their data.
            has_base: whether the tensors are the matrices of adapters on the base that is served, else all weights.
            where: for errors.
            fetch: returns the same tensors with their data.

        Raises: as `_change`.
        """

        def read_adapters() -> dict[str, LowRankChange]:
            shapes = {name: parameter.shape for name, parameter in self._module.named_parameters()}
            return read_changes(fetch(read()), shapes, where=where)

        def read_all() -> tuple[list[tuple[str, Tensor]], list[Tensor]]:
            new = read()
            return new, [target for target, _ in pair_all(self._module, new, where=where)]

        def put_all(checked: tuple[list[tuple[str, Tensor]], list[Tensor]]) -> None:
            self.base.clear()
            new, targets = checked
            copy_weights(zip(targets, (tensor for _, tensor in fetch(new)), strict=True))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # before the run writes to shared memory again

        if has_base:
            await self._change(read_adapters, lambda changes: put_adapters(self._module, self.base, changes))
        else:
            await self._change(read_all, put_all)

    async def finish(self, version: int) -> None:
        """End the update. Raises: ServerUnavailable: none is under way."""
        await self._change(lambda: version, self._name_weights)
        self._is_updating = False

    async def rename(self, version: int) -> None:
        async with self._changes:
            await asyncio.to_thread(self._policy.set_version if self.hold is None else self._name_weights, version)

    async def compute_digests(self) -> dict[str, str]:
        async with self._changes:
            return await asyncio.to_thread(self._compute_digests)

    async def _change(self, read: Callable[[], T], put: Callable[[T], None]) -> None:
        """Do a part of an update, to its end even if the client goes away.

        Args:
            read: reads and checks what is new, and changes nothing.
            put: puts it in place.

        Raises: ServerUnavailable: no update is under way. InvalidInput: `read` failed: the update is over, and sampling
            goes on with the weights that were there. PolicyFailure: `put` failed, and all is broken.
        """
        await asyncio.shield(asyncio.ensure_future(self._do_change(read, put)))

    async def _do_change(self, read: Callable[[], T], put: Callable[[T], None]) -> None:
        async with self._changes:
            if not self._is_updating:
                raise ServerUnavailable("the server is not being updated; send /start_weight_update first.")
            try:
                new = await asyncio.to_thread(read)
            except Exception as error:
                self._is_updating = False
                self._leave_group()
                self._let_go()
                if isinstance(error, InvalidInput):
                    raise
                got, do = f"{type(error).__name__}: {error}".rstrip(".: "), "send weights of the model that is served"
                must = "be of weights that can be read"
                raise InvalidInput.of("weight update", must, got, where="/update_weights", do=do) from error
            try:
                await asyncio.to_thread(put, new)
            except Exception as error:  # whatever it was: some weights may be new
                self._leave_group()  # or other servers wait for this one
                self.broken = f"a weight update failed: {type(error).__name__}: {error}".rstrip(".: ")
                for task in self._sampling:
                    task.cancel()
                raise PolicyFailure(f"{self.broken}.") from error

    def _let_go(self) -> None:
        """Let sampling go on, unless an update is under way; under the lock."""
        if self.hold is not None and not self._is_updating:
            self.hold.close()
            self.hold = None

    def _compute_digests(self) -> dict[str, str]:
        with nullcontext() if self.hold is not None else self._policy.hold():
            return self.base.compute_digests(self._module.named_parameters())


def pair_all(
    module: nn.Module, named_tensors: Collection[tuple[str, Tensor]], *, where: str
) -> list[tuple[Tensor, Tensor]]:
    """Return each tensor after the module's own one of its name.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types.
    """
    pairs = pair_weights(module, named_tensors)
    own = {name for name, _ in module.named_parameters()}
    if missing := sorted(own - {name for name, _ in named_tensors}):
        must, got = f"hold all {len(own)}", f"{len(own) - len(missing)}, without {missing[0]}"
        raise InvalidInput.of("new weights", must, got, where=where, do=_ALL)
    _check_types(pairs, where)
    return pairs


@torch.no_grad()
def put_adapters(module: nn.Module, base: AdaptedBase, changes: Mapping[str, LowRankChange]) -> None:
    """Put base weights with the matrices of adapters in place; the base of weights that have none yet is kept."""
    own, missing = dict(module.named_parameters()), base.missing(changes)
    base.keep((name, own[name]) for name in missing)
    base.change(changes)
    for name, weight in base.merged(next(iter(own.values())).device):
        copy_weights([(own[name], weight)])


def load_weights(module: nn.Module, stored: StoredWeights) -> AdaptedBase:
    """Copy a stored version into a module; of adapters with their base, which is returned.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; nothing was copied.
    """
    where, base = str(stored.directory), AdaptedBase()
    if stored.base is None:
        copy_weights(pair_all(module, list(stored.tensors()), where=where))
        return base
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    changes = read_changes(stored.tensors(), shapes, where=where)
    load_weights(module, StoredWeights.read(stored.base))
    put_adapters(module, base, changes)
    return base


def _check_types(pairs: Iterable[tuple[Tensor, Tensor]], where: str) -> None:
    for target, tensor in pairs:
        do = "serve the model in the type that it is trained in (--dtype)"
        must = f"be of the server's {target.dtype}"
        InvalidInput.unless(target.dtype == tensor.dtype, "new weights", must, tensor.dtype, where=where, do=do)
