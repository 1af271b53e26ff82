"""The optimizer's state in a checkpoint of several ranks: each writes its shards, any number of ranks reads them.

The directory is one of `torch.distributed.checkpoint` and holds nothing but tensors, named `PARAMETER/NUMBER`, such as
`lm_head.weight/exp_avg`. Its index is a pickle, which is read with the classes of such an index and no others.
"""

import pickle
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from envgym.trainer.learner.ranks.sharded import as_shards

_INDEX: Final = ".metadata"
_ALLOWED: Final = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath"},
}
"""What the index of a directory of tensors is made of; dtypes of torch beside them."""


class _IndexReader(pickle._Unpickler):  # in Python, so that instructions can be refused
    """Reads an index, and refuses everything else that a pickle could be."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # functions by the code of an instruction

    def load_build(self) -> None:
        """Set the fields of an object. Raises: UnpicklingError: it is a class, which is not of this index alone."""
        if isinstance(self.stack[-2], type):  # type: ignore[attr-defined]  # of the base class, as the next
            raise pickle.UnpicklingError("a class must stay as it is in an index of tensors")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> object:
        if name in _ALLOWED.get(module, ()) or (module == "torch" and isinstance(getattr(torch, name, 0), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an index of tensors")


class _Reader(FileSystemReader):
    """Reads the shards of a checkpoint whose index may be anybody's."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # as the base class has it
        del args, kwargs
        return read_index(Path(self.path))


def read_index(folder: Path) -> Metadata:
    """Read which tensors a directory holds, and where. Raises: UnpicklingError, OSError, ValueError: it cannot be."""
    with (folder / _INDEX).open("rb") as file:
        index = _IndexReader(file).load()
    if not isinstance(index, Metadata):
        raise ValueError(f"a {type(index).__name__}")  # told in a sentence by the checkpoint's reader
    for place in (index.storage_data or {}).values():
        name = str(place.relative_path)
        if Path(name).name != name or not stat.S_ISREG((folder / name).lstat().st_mode):
            raise ValueError(f"{name}, which is no file of this folder")
    return index


def check_shards(folder: Path) -> None:
    """See that every shard is there in full. Raises: what `read_index` raises; ValueError: a file is cut short."""
    ends: dict[str, int] = {}
    for place in (read_index(folder).storage_data or {}).values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    for name, end in ends.items():
        size = (folder / name).stat().st_size
        if size < end:
            raise ValueError(f"{size} bytes of {end} in {name}")


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the optimizer's numbers of every trained parameter; every rank calls it, or the only process."""
    with _alone_or_not():
        save(_numbers(model, optimizer), storage_writer=FileSystemWriter(folder, single_file_per_rank=True))


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the numbers back that any number of ranks wrote; every rank calls it, or the only process.

    Raises: ValueError: they are of other parameters.
    """
    trained = dict(_trained(model))
    index = read_index(folder).state_dict_metadata
    shapes = {key: tuple(getattr(entry, "size", ())) for key, entry in index.items()}
    owners = {key: key.rpartition("/")[0] for key in index}
    for key, name in owners.items():
        expected = () if key.endswith("/step") else tuple(trained[name].shape) if name in trained else None
        if expected != shapes[key]:
            raise ValueError(f"{key} of shape {list(shapes[key])}")
    if missing := trained.keys() - set(owners.values()) if owners else set():
        raise ValueError(f"no numbers of {min(missing)}")
    for key, name in owners.items():
        number, parameter = key.rpartition("/")[2], trained[name]
        empty = torch.zeros((), dtype=torch.float32) if number == "step" else torch.zeros_like(parameter)
        optimizer.state[parameter][number] = empty.detach()
    with _alone_or_not():
        load(_numbers(model, optimizer), storage_reader=_Reader(folder))


def load_whole(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Put the state of an optimizer of one process into one of ranks, each of which is given all of it.

    Raises: ValueError, LookupError: it is of other parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded = {
        number: {key: _sharded(value, parameters[number]) for key, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": sharded})


def _sharded(value: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor) or not value.ndim:
        return value
    if value.shape != parameter.shape:
        raise ValueError(f"numbers of shape {list(value.shape)} of a parameter of shape {list(parameter.shape)}")
    return as_shards(value.to(parameter.device), parameter)


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _numbers(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's tensors by name; shards of them where the model is sharded."""
    named: dict[str, Tensor] = {}
    for name, parameter in _trained(model):
        named |= {f"{name}/{number}": value for number, value in optimizer.state[parameter].items()}
    return dict(named)


@contextmanager
def _alone_or_not() -> Iterator[None]:
    """Keep torch from warning that a process without ranks is alone, and from raising what no one catches.

    Raises: RuntimeError: a file cannot be written or read.
    """
    try:
        with _without_warnings():
            yield
    except CheckpointException as error:  # is no Exception
        first = next(iter(error.failures.values()))[0]
        raise RuntimeError(str(first)) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load) in a single process.*")
        warnings.filterwarnings("ignore", message=".*TypedStorage is deprecated.*")
        yield
