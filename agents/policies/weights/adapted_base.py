"""The receiver's side of updates that bring LoRA matrices only: the base weights, and the matrices that are added.

Every update computes W + B A from the base, so no rounding accumulates. Which engine holds the sum is not known here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from envgym.agents.models.weights import LowRankChange, add_change
from envgym.agents.policies.weights.weight_store import compute_digests, digest
from envgym.errors import InvalidInput, check_known

_FIELDS: Final = LowRankChange._fields
_OTHER: Final = "not the base with its adapters:"
"""Before the digest of a weight in use that is not the sum. The base without its adapters must not look right."""
_HELD_BYTES: Final = 1 << 30
"""Of weights without adapters that are held at a time while their digests are computed."""
_DO: Final = "send AdaptedWeights(model).adapters() of the model that is served"


class AdaptedBase:
    """Base weights in main memory, of the weights that have or had adapters; empty: no weight has adapters."""

    def __init__(self) -> None:
        self._base: dict[str, Tensor] = {}
        self._changes: Mapping[str, LowRankChange] = {}
        self._digests: dict[str, str] = {}
        """Of the base weights."""
        self._change_digests: dict[str, str] = {}
        """Of the matrices, by their names."""

    def clear(self) -> None:
        """Forget the base, because all weights are replaced."""
        self._base, self._changes, self._digests, self._change_digests = {}, {}, {}, {}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of every weight whose base is stored."""
        return {name: tensor.shape for name, tensor in self._base.items()}

    def missing(self, changes: Iterable[str]) -> set[str]:
        """Return the names of changed weights whose base is not stored."""
        return set(changes) - self._base.keys()

    def keep(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy base weights to main memory."""
        base = {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors}
        self._base |= base
        self._digests |= compute_digests(base.items())

    def change(self, changes: Mapping[str, LowRankChange]) -> None:
        """Replace the matrices, which are copied; the base of every changed weight must be stored."""
        assert not self.missing(changes), "the caller keeps the base first"
        self._changes = {
            weight: LowRankChange(*(matrix.detach().to("cpu", copy=True) for matrix in change))
            for weight, change in changes.items()
        }
        self._change_digests = compute_digests(flatten(self._changes))

    def merged(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Yield on a device every weight whose base is stored, with what its matrices add."""
        for name, base in self._base.items():
            weight, change = base.to(device), self._changes.get(name)
            yield name, weight if change is None else add_change(name, weight, change)

    def compute_digests(self, live: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
        """Return the digests that prove which weights are in use.

        Args:
            live: all weights in use.

        Returns: name -> digest: of the matrices, and of each weight. A weight in use that equals its base with the
            matrices added has the digest of its base; another weight has a text that is no digest.
        """
        plain: list[tuple[str, Tensor]] = []
        digests = dict(self._change_digests)
        for name, tensor in live:
            base = self._base.get(name)
            if base is None:
                plain.append((name, tensor))
                if sum(held.nbytes for _, held in plain) > _HELD_BYTES:
                    digests |= compute_digests(plain)
                    plain.clear()
                continue
            change, weight = self._changes.get(name), base.to(tensor.device)
            expected = weight if change is None else add_change(name, weight, change)
            digests[name] = self._digests[name] if torch.equal(tensor, expected) else f"{_OTHER} {digest(tensor)}"
        return digests | compute_digests(plain)


def flatten(changes: Mapping[str, LowRankChange]) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices under the names by which `AdaptedWeights.adapters` yields them."""
    for weight, change in changes.items():
        yield from ((f"{weight}.{field}", matrix) for field, matrix in change._asdict().items())


def read_changes(
    named_tensors: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size], *, where: str
) -> dict[str, LowRankChange]:
    """Read what `AdaptedWeights.adapters` yielded.

    Args:
        named_tensors: the matrices by name.
        shapes: of every weight of the model.
        where: for errors.

    Raises: UnknownName: a weight that the model does not have. InvalidInput: the matrices do not fit their weight.
    """
    fields: dict[str, dict[str, Tensor]] = {}
    for name, tensor in named_tensors:
        weight, _, field = name.rpartition(".")
        must = f"be matrices named {' or '.join(_FIELDS)}"
        InvalidInput.unless(field in _FIELDS, "adapters", must, name, where=where, do=_DO)
        check_known("weight", weight, shapes, where=where)
        fields.setdefault(weight, {})[field] = tensor
    for weight, matrices in fields.items():
        got = {field: list(tensor.shape) for field, tensor in matrices.items()}
        must = f"be two matrices whose product has shape {list(shapes[weight])}"
        InvalidInput.unless(_fits(got, list(shapes[weight])), f"adapters of {weight}", must, got, where=where, do=_DO)
    return {weight: LowRankChange(**matrices) for weight, matrices in fields.items()}


def _fits(got: Mapping[str, list[int]], shape: list[int]) -> bool:
    lora_A, lora_B = (got.get(field, []) for field in _FIELDS)
    return len(lora_A) == len(lora_B) == 2 and lora_A[0] == lora_B[1] and [lora_B[0], lora_A[1]] == shape
