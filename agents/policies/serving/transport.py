"""How new weights get from the learner to the servers. By files; other ways implement the same interface."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from torch import Tensor

from envgym.agents.policies.serving.weight_store import WeightStore
from envgym.core.json_types import JsonObject


class WeightUpdate(NamedTuple):
    """One version, ready to be taken by any number of servers."""

    version: int
    update_info: JsonObject
    """Body of `/update_weights`, under its key of this name."""
    digests: Mapping[str, str]
    """Name -> sha256 of the tensor's bytes: what `/weight_checker` must find."""


class WeightTransport(Protocol):
    """Makes weights available to servers: by files here; a fast path sends them while `/update_weights` runs."""

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        """Make a version available, until the one after the next."""
        ...

    def finish(self) -> None:
        """Free what is not needed any more, as every server that is in use has the newest version."""
        ...

    def close(self) -> None:
        """Free everything, as no server is brought weights any more; may be called twice."""
        ...


class FileTransport:
    """Weights as versioned directories that servers read."""

    def __init__(self, directory: Path | None = None, *, keep: int = 2) -> None:
        """Write to a directory; None: to a temporary one, which `close` removes. Arguments as for `WeightStore`."""
        self._temporary: TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = TemporaryDirectory(prefix="envgym-weights-")
            directory = Path(self._temporary.name)
        self._store = WeightStore(directory, keep=keep)

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> WeightUpdate:
        """Write a version."""
        stored = self._store.write(named_tensors, version)
        return WeightUpdate(version, {"directory": str(stored.directory)}, stored.digests)

    def finish(self) -> None:
        """Remove old versions."""
        self._store.remove_old()

    def close(self) -> None:
        """Remove the directory where it is a temporary one."""
        if self._temporary is not None:
            self._temporary.cleanup()
