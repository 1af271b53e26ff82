"""Weights as files, one directory for each version, which servers load and late joiners find.

    ROOT/version-00000012/weights-00001.safetensors ...
                          weights.json                the version, and the sha256 of every tensor
                          STABLE                      written last: without it the version does not exist
    ROOT/base/version-00000003/...                        weights that versions of LoRA adapters belong to

A version is written under another name and renamed, so a writer that dies leaves nothing that a reader takes for whole.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from envgym.errors import InvalidInput
from envgym.runs.directory import read_object
from envgym.runs.files import move_into_place, write_atomic, write_json

STABLE: Final = "STABLE"
_MANIFEST: Final = "weights.json"
_NAME: Final = re.compile(r"version-(\d{8,})")
_BASES: Final = "base"
_SHARD_BYTES: Final = 2 << 30
"""Of tensors in one file."""
_WHERE: Final = "weight store"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """One version that was written whole."""

    directory: Path
    version: int
    digests: Mapping[str, str]
    """Name -> sha256 of the tensor's bytes, in hexadecimal digits."""
    base: Path | None = None
    """Directory of the weights that these are the adapters of; None: these are all weights."""

    @classmethod
    def read(cls, directory: Path) -> "StoredWeights":
        """Read what a directory holds. Raises: InvalidInput: it is no version, or was not written to its end."""
        if not (directory / STABLE).is_file():
            do = "name the directory of a version that was written to its end"
            must = f"hold weights with the marker {STABLE}"
            raise InvalidInput.of("weights directory", must, str(directory), where=_WHERE, do=do)
        manifest: dict[str, Any] = read_object(directory / _MANIFEST)
        version, digests, base = manifest.get("version"), manifest.get("digests"), manifest.get("base")
        texts = digests.values() if isinstance(digests, dict) else [None]
        is_readable = isinstance(version, int) and isinstance(base, int | None)
        if not is_readable or not all(isinstance(text, str) for text in texts):
            must, do, got = "name its version and a digest of each tensor", "write the version again", sorted(manifest)
            raise InvalidInput.of(_MANIFEST, must, got, where=str(directory), do=do)
        of_base = None if base is None else directory.parent / _BASES / _directory_name(base)
        return cls(directory=directory, version=manifest["version"], digests=manifest["digests"], base=of_base)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor, from files that are mapped into memory.

        Raises: InvalidInput: the files hold other tensors than the version names.
        """
        from safetensors import SafetensorError, safe_open

        left = set(self.digests)
        for path in sorted(self.directory.glob("*.safetensors")):
            must, do = "be a regular file of safetensors", "write the version again"
            InvalidInput.unless(path.is_file(), path.name, must, "another", where=str(self.directory), do=do)
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118  # no mapping
                        left.discard(name)
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise InvalidInput.of(path.name, must, str(error), where=str(self.directory), do=do) from error
        if left:
            do, got = "write the version again", f"files without {min(left)}"
            raise InvalidInput.of("weights", "hold every tensor of the version", got, where=str(self.directory), do=do)


class WeightStore:
    """A directory of versions, with one writer and any number of readers."""

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        """Use a directory, which is made where it is missing.

        Args:
            root: on a file system that servers see under the same path.
            keep: newest versions that are kept: at least two, as a server may be loading the one before.

        Raises: InvalidInput: `keep` is below 2.
        """
        InvalidInput.unless(keep >= 2, "kept versions", "be at least 2", keep, where=_WHERE, do="keep 2 or more")
        self.root, self._keep = root.absolute(), keep
        self.root.mkdir(parents=True, exist_ok=True)

    def bases(self) -> "WeightStore":
        """Return the store of the weights that versions of adapters belong to."""
        return WeightStore(self.root / _BASES, keep=self._keep)

    def write(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: int | None = None
    ) -> StoredWeights:
        """Write a version, which is the newest from now on: one of this number that is there is replaced.

        Higher ones, of a run that was resumed from before them, are removed.

        Args:
            named_tensors: all weights, or the matrices of adapters.
            version: of the weights.
            base: version among `bases` that the adapters belong to; None: these are all weights.
        """
        target = self._directory(version)
        work = self.root / f".writing-{version:08d}-{os.getpid()}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            digests = _write_shards(work, named_tensors)
            of_base = {} if base is None else {"base": base}
            write_json(work / _MANIFEST, {"version": version, "digests": digests, **of_base})
            _remove(target)
            move_into_place(work, target)
            write_atomic(target / STABLE, b"")
            for later in self.versions():
                if later > version:
                    _remove(self._directory(later))
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        return StoredWeights.read(target)

    def versions(self) -> list[int]:
        """Return the versions that are there, in ascending order."""
        matches = [(_NAME.fullmatch(path.name), path) for path in self.root.iterdir()]
        return sorted(int(match[1]) for match, path in matches if match and (path / STABLE).is_file())

    def _directory(self, version: int) -> Path:
        return self.root / _directory_name(version)

    def newest(self) -> StoredWeights | None:
        versions = self.versions()
        return StoredWeights.read(self._directory(versions[-1])) if versions else None

    def remove_old(self, in_use: Collection[int] = ()) -> None:
        """Remove all but the newest versions and those in `in_use`, and what writers that died have left."""
        for version in self.versions()[: -self._keep]:
            if version not in in_use:
                _remove(self._directory(version))
        for path in self.root.iterdir():
            is_unfinished = path.name.startswith(".writing-") or (
                _NAME.fullmatch(path.name) and not (path / STABLE).is_file()
            )
            if is_unfinished:
                shutil.rmtree(path, ignore_errors=True)


def _directory_name(version: int) -> str:
    return f"version-{version:08d}"


def digest(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's bytes, zeros taken as positive: a kernel need not keep the sign of one."""
    data = (tensor.detach().cpu() + 0).contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data.data).hexdigest()


def compute_digests(named_tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Return the digest of each tensor, computed by several threads."""
    pairs = list(named_tensors)
    with ThreadPoolExecutor() as pool:
        return dict(zip((name for name, _ in pairs), pool.map(digest, (tensor for _, tensor in pairs)), strict=True))


def _write_shards(folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    from safetensors.torch import save_file

    digests: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    num_bytes = num_shards = 0

    def write() -> None:
        nonlocal shard, num_bytes, num_shards
        if shard:
            num_shards += 1
            digests.update(compute_digests(shard.items()))
            save_file(shard, folder / f"weights-{num_shards:05d}.safetensors")
        shard, num_bytes = {}, 0

    for name, tensor in named_tensors:
        cpu_tensor = tensor.detach().to("cpu").contiguous()
        shard[name] = cpu_tensor
        num_bytes += cpu_tensor.numel() * cpu_tensor.element_size()
        if num_bytes >= _SHARD_BYTES:
            write()
    write()
    return digests


def _remove(directory: Path) -> None:
    """Remove a version, its marker first."""
    (directory / STABLE).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
