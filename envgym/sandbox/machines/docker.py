"""The Docker back-end of machines: one container for each, with a writable layer and the limits of the engine."""

import atexit
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from envgym.errors import ForkUnsupported, ToolInfraFailure
from envgym.sandbox.machines._container import DockerMachine
from envgym.sandbox.machines._engine import MachineEngine
from envgym.sandbox.machines.records import Machine, MachineSpec


def start_machine(spec: MachineSpec, guest_image: str) -> Machine:
    """Start a machine whose guest runs from an image with Python. Raises: as `MachineBackend.start`."""
    home = _shared.home(guest_image)
    config = home.engine.image_config(spec.image)
    whole = replace(
        spec,
        env={**config.env, **spec.env},
        user=spec.user or config.user,
        workdir=spec.workdir or config.workdir,
    )
    return home.start(whole, config.env, snapshot=None)


def why_no_machines(guest_image: str) -> str | None:
    """Return in one sentence why no machine can be started here, None if one can."""
    try:
        _shared.home(guest_image)
    except ToolInfraFailure as failure:
        return str(failure)
    return None


class _Home:
    """The machines of this process with one guest."""

    def __init__(self, image: str) -> None:
        self.engine = MachineEngine()
        self._lock = threading.Lock()
        self._snapshots: dict[str, str] = {}  # container -> the copy of files that it was started from
        self._orphans: list[str] = []  # copies that copies of them keep
        try:
            self._volume = self.engine.fill_volume(image)
        except BaseException:
            self.engine.close()
            raise

    def start(self, spec: MachineSpec, image_env: Mapping[str, str], snapshot: str | None) -> Machine:
        """Start a machine, from a copy of files if one is given. Raises: ToolInfraFailure."""
        container = self.engine.start(
            spec if snapshot is None else replace(spec, image=snapshot), image_env, self._volume
        )
        if snapshot is not None:
            with self._lock:
                self._snapshots[container.id] = snapshot
        return DockerMachine(self, container, spec)

    def fork(self, id: str, spec: MachineSpec) -> Machine:
        """Start a machine from the files of a container. Raises: ForkUnsupported, ToolInfraFailure."""
        if self.engine.image_config(spec.image).has_volumes:
            must, do = "keep its files in one layer", "remove VOLUME from its Dockerfile"
            raise ForkUnsupported.of("image", must, f"{spec.image} with volumes", where="fork", do=do)
        snapshot = self.engine.commit(id)
        try:
            return self.start(spec, spec.env, snapshot)
        except BaseException:
            self.engine.remove_image(snapshot)
            raise

    def remove(self, id: str) -> None:
        """Remove a container, and the copies of files that nothing needs any more."""
        self.engine.remove(id)
        with self._lock:
            snapshot = self._snapshots.pop(id, None)
            if snapshot is not None:
                self._orphans.append(snapshot)
            while gone := {orphan for orphan in self._orphans if self.engine.remove_image(orphan)}:
                self._orphans = [orphan for orphan in self._orphans if orphan not in gone]

    def close(self) -> None:
        with suppress(ToolInfraFailure):
            self.engine.remove_all()
        self.engine.close()


class _Shared:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must: containers, connections and a lock that is held are its parent's."""
        self._lock = threading.Lock()
        self._homes: dict[tuple[str | None, str], _Home] = {}
        """(address of the engine, image of the guest) -> its machines."""

    def home(self, image: str) -> _Home:
        place = os.environ.get("DOCKER_HOST"), image
        with self._lock:
            if place not in self._homes:
                self._homes[place] = _Home(image)
            return self._homes[place]

    def close(self) -> None:
        """Remove every machine of this process; a later one starts anew."""
        with self._lock:
            homes, self._homes = self._homes, {}
        for home in homes.values():
            home.close()


_shared = _Shared()
atexit.register(_shared.close)
os.register_at_fork(after_in_child=_shared.forget)
