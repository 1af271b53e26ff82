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

from envgym.agents.policies.engine.policy import TransformersPolicy, copy_weights, pair_weights
from envgym.agents.policies.weights.collective import GroupAddress, WeightGroup, group_device, join
from envgym.agents.policies.weights.shared_memory import read_shared
from envgym.agents.policies.weights.weight_store import StoredWeights, compute_digests
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

        Raises: PolicyFailure: nobody is there; sampling goes on. InvalidInput: as `join`.
        """
        self._num_joins += 1
        number = self._num_joins
        self._leave_group()
        group_device(address.backend, self.device)
        try:
            group = await in_daemon_thread(lambda: join(address, self.device))
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

    async def load(self, directory: Path) -> None:
        """Load a stored version. Raises: as `_change`."""

        def read() -> list[tuple[Tensor, Tensor]]:
            stored = StoredWeights.read(directory)
            return pair_all(self._module, list(stored.tensors()), where=str(directory))

        await self._change(read, copy_weights)

    async def map(self, described: Mapping[str, Any]) -> None:  # JSON
        """Take a version from memory that the run shares. Raises: as `_change`."""

        def put(pairs: list[tuple[Tensor, Tensor]]) -> None:
            copy_weights(pairs)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # before the run writes to that memory again

        await self._change(lambda: pair_all(self._module, list(read_shared(described)), where="shared memory"), put)

    async def receive(self, group: WeightGroup) -> None:
        """Take a version as a group brings it. Raises: as `_change`."""

        def read() -> list[tuple[str, Tensor]]:
            described = group.receive_description()
            pair_all(self._module, described, where="process group")
            return described

        def put(described: list[tuple[str, Tensor]]) -> None:
            for name, tensor in group.receive(described):
                copy_weights(pair_weights(self._module, [(name, tensor)]))

        await self._change(read, put)

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
            return compute_digests(self._module.named_parameters())


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


def load_weights(module: nn.Module, stored: StoredWeights) -> None:
    """Copy a stored version into a module.

    Raises: UnknownName, InvalidInput: weights are missing, or of other shapes or types; nothing was copied.
    """
    copy_weights(pair_all(module, list(stored.tensors()), where=str(stored.directory)))


def _check_types(pairs: Iterable[tuple[Tensor, Tensor]], where: str) -> None:
    for target, tensor in pairs:
        do = "serve the model in the type that it is trained in (--dtype)"
        must = f"be of the server's {target.dtype}"
        InvalidInput.unless(target.dtype == tensor.dtype, "new weights", must, tensor.dtype, where=where, do=do)
