"""AdamW of weights in bfloat16 that loses no update to rounding.

Half a step of bfloat16 at 0.02 is 6e-5. An update of 1e-6 is rounded away, and the weight never moves. `ExactAdamW`
keeps the 16 bits of a float32 weight that bfloat16 leaves out, as a tensor of the optimizer's state. Every step
computes on the float32 weight, and writes back its rounding and the bits that are left out.

A weight takes 2 bytes, and 6 in the optimizer: the left-out bits, and two moments in bfloat16. With float32 weights
these are 4 and 8 bytes.
"""

from collections.abc import Callable
from typing import Any, Final, overload

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

_LEFT_OUT: Final = "left_out_bits"


class ExactAdamW(torch.optim.AdamW):
    """AdamW, of whose parameters in bfloat16 every one has a float32 value: it and the left-out bits in the state.

    Parameters of other dtypes are updated as by AdamW. Its decay rates must be at most `settings.LARGEST_BETA`.
    """

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
                    self._update(parameter, group)
        return None

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        weight, moments = _here(parameter), [_here(state["exp_avg"]), _here(state["exp_avg_sq"])]
        is_short = weight.dtype is torch.bfloat16
        if is_short and _LEFT_OUT not in state:  # new, or of a checkpoint of AdamW
            state[_LEFT_OUT] = torch.zeros_like(parameter)
        exact = joined(weight, _here(state[_LEFT_OUT])) if is_short else weight
        wide = [moment.to(exact.dtype) for moment in moments]
        adamw(
            [exact],
            [_here(parameter.grad).to(exact.dtype)],  # type: ignore[arg-type]  # there is one
            [wide[0]],
            [wide[1]],
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
        if is_short:
            for part, value in zip((weight, _here(state[_LEFT_OUT])), split(exact), strict=True):
                part.copy_(value)
            for moment, value in zip(moments, wide, strict=True):
                moment.copy_(value)


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


def _here(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
