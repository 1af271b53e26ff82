"""Optimizers of weights in bfloat16 that lose no update to rounding.

Half a step of bfloat16 at 0.02 is 6e-5. An update of 1e-6 is rounded away, and the weight never moves.
`ExactOptimizer` keeps the 16 bits of a float32 weight that bfloat16 leaves out, as a tensor of the optimizer's state.
Every step computes on the float32 weight, and writes back its rounding and the bits that are left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, overload

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

LEFT_OUT: Final = "left_out_bits"
SLICE: Final = 2**21
"""Numbers that an elementwise update computes at a time. Each of them needs 24 bytes beside the state."""
ParameterGroup = dict[str, Any]
"""A group of parameters with its settings, as torch's optimizers have it."""


class ExactOptimizer(torch.optim.Optimizer, ABC):
    """Update every parameter by a rule on its float32 value, which a parameter in bfloat16 has with its left-out bits.

    Parameters of other dtypes are updated as they are. Of a sharded parameter a rank updates its shard.
    """

    own_dtypes: ClassVar[frozenset[str]] = frozenset()
    """Names of the tensors of a state whose dtype is not that of the parameter."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; `closure` must be None."""
        assert closure is None, "losses are computed before"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return None

    @abstractmethod
    def new_state(self, parameter: Tensor, group: ParameterGroup) -> dict[str, Tensor]:
        """Return the state of a parameter before its first update."""

    @abstractmethod
    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: ParameterGroup, parameter: Tensor
    ) -> None:
        """Update a weight and its state in place.

        Args:
            weight: in float32 or wider, of a sharded parameter this rank's part; as `gradient` and `state`. If
                `is_elementwise` is true, it can be a slice of that part.
            gradient: of the weight, in its dtype.
            state: as `new_state` returns it, floating-point numbers in the dtype of the weight.
            group: of the parameter.
            parameter: the weight as the model has it.
        """

    def is_elementwise(self, group: ParameterGroup) -> bool:
        """Return whether `update` computes every number of a group's weights by itself, so that slices may be given."""
        return False

    def read(self, stored: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return a state, or slices of its tensors, as `update` takes it: floating-point tensors in a dtype."""
        return {name: value.to(dtype) if value.ndim else value for name, value in stored.items()}

    def write(self, state: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
        """Write what `read` returned back to the tensors that it was read from."""
        for name, value in state.items():
            if value is not stored[name]:
                stored[name].copy_(value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put a state back. Torch casts it to the dtypes of the parameters, apart from `own_dtypes`."""
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, values in state_dict["state"].items():
            parameter = parameters[number]
            for name in values.keys() & self.own_dtypes:
                self.state[parameter][name] = values[name].to(parameter.device, copy=True)

    def _step(self, parameter: Tensor, group: ParameterGroup) -> None:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update(self.new_state(parameter, group))
        if parameter.dtype is torch.bfloat16 and LEFT_OUT not in state:  # new, or from one without these bits
            state[LEFT_OUT] = torch.zeros_like(parameter)
        assert parameter.grad is not None, "the caller checked"
        values = {name: here(value) for name, value in state.items()}
        counts = {name: value for name, value in values.items() if not value.ndim}
        tensors = {name: value for name, value in values.items() if value.ndim}
        new_counts = counts
        whole = (here(parameter), here(parameter.grad), tensors)
        for weight, gradient, of_part in _slices(*whole) if self.is_elementwise(group) else [whole]:
            new_counts = {name: value.clone() for name, value in counts.items()}  # every slice is of the same step
            self._update_part(weight, gradient, {**of_part, **new_counts}, group, parameter)
        for name, value in new_counts.items():
            counts[name].copy_(value)

    def _update_part(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: ParameterGroup, parameter: Tensor
    ) -> None:
        is_short = weight.dtype is torch.bfloat16
        exact = joined(weight, state[LEFT_OUT]) if is_short else weight
        stored = {name: value for name, value in state.items() if name != LEFT_OUT}
        wide = self.read(stored, exact.dtype)
        self.update(exact, gradient.to(exact.dtype), wide, group, parameter)
        self.write(wide, stored)
        if is_short:
            for part, value in zip((weight, state[LEFT_OUT]), split(exact), strict=True):
                part.copy_(value)


class ExactAdamW(ExactOptimizer):
    """AdamW. Its decay rates must be at most `settings.LARGEST_BETA` for parameters in bfloat16."""

    def new_state(self, parameter: Tensor, group: ParameterGroup) -> dict[str, Tensor]:
        """Return the step and two moments in the dtype of the parameter."""
        return {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def is_elementwise(self, group: ParameterGroup) -> bool:
        return True

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: ParameterGroup, parameter: Tensor
    ) -> None:
        adamw(
            [weight],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            foreach=False,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _slices(
    weight: Tensor, gradient: Tensor, tensors: dict[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Yield views of at most `SLICE` numbers of a weight; of rows where the memory of a tensor is not contiguous.

    A tensor has the shape of the weight, or one number for so many of the weight's, of which `SLICE` is a multiple.
    """
    listed = [weight, gradient.contiguous() if weight.is_contiguous() else gradient, *tensors.values()]
    if all(tensor.is_contiguous() for tensor in listed):
        listed = [tensor.view(-1) for tensor in listed]
    num_rows = max(1, SLICE * len(listed[0]) // max(1, weight.numel()))
    sizes = [max(1, num_rows * len(tensor) // max(1, len(listed[0]))) for tensor in listed]
    for parts in zip(*(tensor.split(size) for tensor, size in zip(listed, sizes, strict=True)), strict=True):
        yield parts[0], parts[1], dict(zip(tensors, parts[2:], strict=True))


def split(exact: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 numbers as their rounding to bfloat16, halves upwards, and the bits that it leaves out.

    The bits are whole numbers from -32768 to 32767 that are added to those of the rounding. They are returned as
    bfloat16, so that what casts an optimizer's state to the dtype of its parameter keeps them.
    """
    bits = exact.view(torch.int32)
    upper = (bits + 0x8000) >> 16
    left_out = bits - (upper << 16)
    return upper.to(torch.int16).view(torch.bfloat16), left_out.to(torch.int16).view(torch.bfloat16)


def joined(rounded: Tensor, left_out: Tensor) -> Tensor:
    """Return the float32 numbers that `split` has split."""
    upper = rounded.contiguous().view(torch.int16).to(torch.int32) << 16
    return (upper + left_out.contiguous().view(torch.int16).to(torch.int32)).view(torch.float32)


def here(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
