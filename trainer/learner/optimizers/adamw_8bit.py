"""AdamW whose moments have 8 bits and a scale for each block of numbers. Source: 2110.02861.

Own code: the optimizers of bitsandbytes and torchao round weights in bfloat16 themselves. Functions of torchao 0.18
that code moments come with an import of two seconds, which tries to load kernels of other versions of torch.
"""

from functools import cache
from typing import ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn

from envgym.config.settings import Settings
from envgym.trainer.learner.optimizers.base import bytes_here, decay_groups, left_out_bytes, trainable
from envgym.trainer.learner.optimizers.exact import ExactAdamW, ParameterGroup, here
from envgym.trainer.learner.settings import ADAMW_EPS, OptimSettings

BLOCK: Final = 256
"""Numbers that share a scale."""
LEAST: Final = 4096
"""Tensors with fewer numbers, and those that have no whole number of blocks, keep the moments of AdamW."""
_MOMENTS: Final = {"exp_avg": True, "exp_avg_sq": False}
"""Name of a moment -> whether it has a sign."""


class AdamW8bit(Settings):
    """AdamW with moments of 8 bits, in every precision."""

    eps: float = Field(default=ADAMW_EPS, gt=0)
    """Constant that is added to the divisor."""

    trains_bfloat16: ClassVar = True
    trains_shards: ClassVar = False

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        """Build it over the trainable parameters; vectors (norms, biases) do not decay."""
        groups = decay_groups(trainable(model), optim)
        return ExactAdamW8bit(groups, {"lr": optim.lr, "betas": optim.betas, "eps": self.eps})

    def slowest_decay(self, optim: OptimSettings) -> float:
        """Return the larger one of `betas`."""
        return max(optim.betas)

    def state_bytes(self, model: nn.Module) -> int:
        """Return the bytes of codes and scales, or of two moments where a tensor has none, and of left-out bits."""
        parameters = trainable(model)
        coded = [here(parameter).numel() for parameter in parameters if _is_coded(parameter)]
        plain = [parameter for parameter in parameters if not _is_coded(parameter)]
        codes = sum(2 * (number + 4 * number // BLOCK) for number in coded)
        return codes + 2 * bytes_here(plain) + left_out_bytes(parameters)


class ExactAdamW8bit(ExactAdamW):
    """AdamW that computes an update on moments in float32, and keeps each as codes of 8 bits and scales."""

    own_dtypes = frozenset(f"{moment}_{part}" for moment in _MOMENTS for part in ("codes", "scales"))

    def new_state(self, parameter: Tensor, group: ParameterGroup) -> dict[str, Tensor]:
        """Return the step, and for each moment codes in the shape of the parameter and float32 scales by block."""
        if not _is_coded(parameter):
            return super().new_state(parameter, group)
        state = {"step": torch.zeros((), dtype=torch.float32)}
        for moment, signed in _MOMENTS.items():
            codes, scales = _coded(torch.zeros(parameter.shape, device=parameter.device), signed=signed)
            state |= {f"{moment}_codes": codes, f"{moment}_scales": scales}
        return state

    def read(self, stored: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        state = super().read({name: value for name, value in stored.items() if name not in self.own_dtypes}, dtype)
        for moment, signed in _MOMENTS.items():
            if f"{moment}_codes" in stored:
                codes, scales = stored[f"{moment}_codes"], stored[f"{moment}_scales"]
                state[moment] = _decoded(codes, scales, signed=signed).to(dtype)
        return state

    def write(self, state: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
        for moment, signed in _MOMENTS.items():
            if f"{moment}_codes" in stored:
                codes, scales = _coded(state.pop(moment).float(), signed=signed)
                stored[f"{moment}_codes"].copy_(codes)
                stored[f"{moment}_scales"].copy_(scales)
        super().write(state, stored)


def _is_coded(parameter: Tensor) -> bool:
    number = here(parameter).numel()
    return number >= LEAST and number % BLOCK == 0 and parameter.is_contiguous()


def _coded(moment: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Return the codes of a float32 tensor, in its shape, and the scale of each block: its largest magnitude."""
    blocks = moment.view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    values = _values(signed, moment.device)
    shares = blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)[:, None]
    codes = torch.bucketize(shares, (values[1:] + values[:-1]) / 2)
    if not signed:
        codes = codes.maximum((shares > 0).to(codes.dtype))  # a second moment of 0 would make the update too large
    return codes.to(torch.uint8).view(moment.shape), scales


def _decoded(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    blocks = _values(signed, codes.device)[codes.view(-1, BLOCK).int()] * scales[:, None]
    return blocks.view(codes.shape)


@cache
def _values(signed: bool, device: torch.device) -> Tensor:  # a key of the cache
    """Return the values of the 256 codes, sorted: 0, 1, and seven decades, each with twice as many as the one below."""
    parts = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1, dtype=torch.float64)
        middles = 10.0 ** (decade - 6) * (edges[1:] + edges[:-1]) / 2
        parts += [middles, -middles] if signed else [middles]
    return torch.cat(parts).sort().values.float().to(device)
