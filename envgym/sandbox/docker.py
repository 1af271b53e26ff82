"""The Docker back-end: one container for one program, started before it is needed, removed afterwards.

A container has no network, no capabilities and no way to more rights; its root is read-only, its files lie in a
`tmpfs`; memory and processes are limited by the engine, the rest from inside. Any image with `python3` serves;
`docker/sandbox` builds the usual one. A container ends when its host process does, and is removed by the next one.
"""

import atexit
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.sandbox._docker_engine import ContainerLimits, DockerEngine, WaitingContainer
from envgym.sandbox._docker_run import ContainerRun
from envgym.sandbox.machines._build import build_image
from envgym.sandbox.machines.docker import start_machine, why_no_machines
from envgym.sandbox.machines.records import Machine, MachineSpec
from envgym.sandbox.records import Completed, Limits, Program, SandboxBackend

IMAGE = "envgym-sandbox"
"""What `docker build -t envgym-sandbox docker/sandbox` makes."""
WARM = 2
_WORKERS = 2
"""Threads that start and remove containers while programs run."""


@dataclass(frozen=True, slots=True)
class DockerSandbox(SandboxBackend):
    """Runs programs in containers, and starts machines; see `MachineBackend`.

    All of one process with the same settings share the containers that wait.
    """

    image: str = IMAGE
    warm: int = WARM
    """Containers that wait for a program, at most; those of the limits used last. 0: each is started when needed."""

    def __post_init__(self) -> None:
        """Check the settings; the engine is asked later. Raises: InvalidInput."""
        if not self.image or self.image.startswith("-"):
            raise InvalidInput.of("image", "be a name", self.image, where="DockerSandbox", do=f"pass {IMAGE}")
        InvalidInput.unless(self.warm >= 0, "warm", "be at least 0", self.warm, where="DockerSandbox", do="pass 2")

    def _complete(self, program: Program, limits: Limits) -> Completed:
        pool = _shared.pool(self)
        waiting = pool.take(ContainerLimits(memory=limits.memory, disk=limits.disk, processes=limits.processes))
        try:
            return ContainerRun(pool.engine, waiting, limits).complete(program)
        finally:
            pool.discard(waiting)

    def close(self) -> None:
        """End the containers that wait; runs of others go on, and a later run starts new ones."""
        _shared.close(self)

    def build(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        bases: Mapping[str, str] = MappingProxyType({}),
        network: bool = False,
        timeout_s: float = 600.0,
    ) -> str:
        """Return the image of a machine that a Dockerfile describes. Raises: as `MachineBackend.build`."""
        return build_image(context, dockerfile=dockerfile, bases=bases, network=network, timeout_s=timeout_s)

    def start(self, spec: MachineSpec) -> Machine:
        """Start a machine, whose guest runs from this sandbox' image. Raises: as `MachineBackend.start`."""
        return start_machine(spec, self.image)

    def why_unavailable(self) -> str | None:
        """Return in one sentence why no machine can be started here, None if one can."""
        return why_no_machines(self.image)


class _Pool:
    """The containers of one image that wait for their programs."""

    def __init__(self, engine: DockerEngine, settings: DockerSandbox) -> None:
        self.engine = engine
        self._settings = settings
        self._idle: list[tuple[ContainerLimits, WaitingContainer]] = []  # the oldest first
        self._num_coming = 0
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="envgym-docker")
        self._is_closed = False

    def take(self, shape: ContainerLimits) -> WaitingContainer:
        """Return a container that waits, and see to the next one. Raises: ToolInfraFailure."""
        while (waiting := self._pop(shape)) is not None and not waiting.is_waiting():
            self.discard(waiting)
        waiting = waiting or self.engine.start(self._settings.image, shape)
        self._order_another(shape)
        return waiting

    def discard(self, waiting: WaitingContainer) -> None:
        waiting.close()
        self._submit_removal(waiting.id)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, waiting in idle:
            self.discard(waiting)
        self._workers.shutdown()

    def _pop(self, shape: ContainerLimits) -> WaitingContainer | None:
        with self._lock:
            for index, (its_shape, waiting) in enumerate(self._idle):
                if its_shape == shape:
                    del self._idle[index]
                    return waiting
        return None

    def _order_another(self, shape: ContainerLimits) -> None:
        with self._lock:
            num_ready = sum(its_shape == shape for its_shape, _ in self._idle)
            if self._is_closed or num_ready + self._num_coming >= self._settings.warm:
                return
            self._num_coming += 1
            self._workers.submit(self._add, shape)

    def _add(self, shape: ContainerLimits) -> None:
        """Start a container that waits; whoever needs one is told why it does not start."""
        waiting = None
        with suppress(ToolInfraFailure):
            waiting = self.engine.start(self._settings.image, shape)
        with self._lock:
            self._num_coming -= 1
            if waiting is not None:
                self._idle.append((shape, waiting))
            num_surplus = max(0, len(self._idle) - (0 if self._is_closed else self._settings.warm))
            surplus, self._idle = self._idle[:num_surplus], self._idle[num_surplus:]
        for _, old in surplus:
            self.discard(old)

    def _submit_removal(self, id: str) -> None:
        try:
            self._workers.submit(self.engine.remove, id)
        except RuntimeError:  # the pool is closed
            self.engine.remove(id)


class _Shared:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must: containers, connections and a lock that is held are its parent's."""
        self._lock = threading.Lock()
        self._engine: DockerEngine | None = None
        self._pools: dict[DockerSandbox, _Pool] = {}

    def pool(self, settings: DockerSandbox) -> _Pool:
        with self._lock:
            if settings not in self._pools:
                self._engine = self._engine or DockerEngine()
                self._pools[settings] = _Pool(self._engine, settings)
            return self._pools[settings]

    def close(self, settings: DockerSandbox) -> None:
        with self._lock:
            pool = self._pools.pop(settings, None)
        if pool is not None:
            pool.close()

    def close_all(self) -> None:
        for settings in list(self._pools):
            self.close(settings)
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(ToolInfraFailure):
                engine.remove_all()
            engine.close()


_shared = _Shared()
atexit.register(_shared.close_all)
os.register_at_fork(after_in_child=_shared.forget)
