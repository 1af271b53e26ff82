"""Muon: matrices move by their orthogonalised momentum, all other parameters by AdamW. Source: 2502.16982."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim._muon import muon
from transformers import PreTrainedModel

from envgym.config.settings import Settings
from envgym.trainer.learner.optimizers.base import bytes_here, decay_groups, left_out_bytes, trainable
from envgym.trainer.learner.optimizers.exact import ExactAdamW, ParameterGroup
from envgym.trainer.learner.settings import ADAMW_EPS, OptimSettings

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration, as `torch.optim.Muon` has them."""
_EPS = 1e-7
_MOMENTUM = "momentum_buffer"


class Muon(Settings):
    """Muon for the matrices of the layers, AdamW for embeddings, output layer and vectors."""

    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of the momentum (Nesterov's); at most 0.97 for weights in bfloat16."""
    steps: int = Field(default=5, ge=1, lt=100)
    """Newton-Schulz iterations of one update."""
    rate: Literal["adamw", "spectral"] = "adamw"
    """`adamw`: an update of an m x n matrix is multiplied with 0.2 sqrt(max(m, n)), so that it is about as large as
    AdamW's and `optim.lr` is as for AdamW. `spectral`: it is multiplied with sqrt(max(1, m / n))."""

    eps: float = Field(default=ADAMW_EPS, gt=0)
    """Constant that AdamW adds to its divisor."""

    trains_bfloat16: ClassVar = True
    trains_shards: ClassVar = True

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        """Build it over the trainable parameters; vectors (norms, biases) do not decay."""
        matrices, others = _parts(model)
        settings = {
            "momentum": self.momentum,
            "ns_steps": self.steps,
            "adjust_lr_fn": "match_rms_adamw" if self.rate == "adamw" else "original",
        }
        groups = [{**group, "is_muon": True, **settings} for group in decay_groups(matrices, optim)]
        groups += [{**group, "is_muon": False} for group in decay_groups(others, optim)]
        return MuonAdamW(groups, {"lr": optim.lr, "betas": optim.betas, "eps": self.eps})

    def slowest_decay(self, optim: OptimSettings) -> float:
        """Return the largest decay rate of the momentum and of AdamW's moments."""
        return max(self.momentum, *optim.betas)

    def state_bytes(self, model: nn.Module) -> int:
        """Return the bytes of one momentum for matrices, two moments for the others, and of left-out bits."""
        matrices, others = _parts(model)
        return bytes_here(matrices) + 2 * bytes_here(others) + left_out_bytes([*matrices, *others])


class MuonAdamW(ExactAdamW):
    """Muon for the groups with `is_muon`, AdamW for the other groups."""

    def new_state(self, parameter: Tensor, group: ParameterGroup) -> dict[str, Tensor]:
        return {_MOMENTUM: torch.zeros_like(parameter)} if group["is_muon"] else super().new_state(parameter, group)

    def is_elementwise(self, group: ParameterGroup) -> bool:
        return not group["is_muon"]

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: ParameterGroup, parameter: Tensor
    ) -> None:
        if not group["is_muon"]:
            super().update(weight, gradient, state, group, parameter)
            return
        momentum: float = group["momentum"]
        average = state[_MOMENTUM].lerp_(gradient, 1 - momentum)
        direction = _whole(gradient.lerp(average, momentum), parameter)
        # The matrix is orthogonalised whole, so every rank computes what one process computes.
        step = torch.zeros_like(direction)
        muon(
            [step],
            [direction],
            [torch.zeros_like(direction)],
            lr=group["lr"],
            weight_decay=0.0,
            momentum=0.0,
            nesterov=False,
            ns_coefficients=_COEFFICIENTS,
            eps=_EPS,
            ns_steps=group["ns_steps"],
            adjust_lr_fn=group["adjust_lr_fn"],
            has_complex=False,
        )
        weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(_part(step, parameter))


def _parts(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable matrices that are neither embeddings nor output layers, and the other parameters."""
    modules: list[Any] = list(model.modules())
    heads = [module.get_output_embeddings() for module in modules if isinstance(module, PreTrainedModel)]
    embeddings = [module for module in modules if isinstance(module, nn.Embedding)]
    outer = {
        id(parameter) for module in (*heads, *embeddings) if module is not None for parameter in module.parameters()
    }
    matrices = {id(p): p for p in trainable(model) if p.ndim == 2 and id(p) not in outer}
    return list(matrices.values()), [parameter for parameter in trainable(model) if id(parameter) not in matrices]


def _whole(part: Tensor, parameter: Tensor) -> Tensor:
    """Return the tensor of all ranks whose part of one rank is given."""
    if not isinstance(parameter, DTensor):
        return part
    mesh, shape, stride = parameter.device_mesh, parameter.shape, parameter.stride()
    return DTensor.from_local(part, mesh, parameter.placements, shape=shape, stride=stride).full_tensor()


def _part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of a tensor that every rank has, cut as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
