"""Adafactor: second moments as the product of a row and a column. Source: 1804.04235."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim._adafactor import adafactor

from envgym.config.settings import Settings
from envgym.trainer.learner.optimizers.base import bytes_here, decay_groups, left_out_bytes, trainable
from envgym.trainer.learner.optimizers.exact import ExactOptimizer, ParameterGroup
from envgym.trainer.learner.settings import OptimSettings


class Adafactor(Settings):
    """Adafactor: no first moment, and of the second only row and column means. `optim.lr` is relative to the weights.

    An update of a tensor is at most about `optim.lr` times the root mean square of the tensor.
    """

    beta2_decay: float = Field(default=-0.8, lt=0)
    """The second moment at step t is averaged with decay rate 1 - t ** beta2_decay."""
    clip: float = Field(default=1.0, gt=0)
    """Largest root mean square of an update, before the learning rate."""
    min_scale: float = Field(default=1e-3, gt=0)
    """Least root mean square of a tensor that the learning rate is multiplied with."""

    trains_bfloat16: ClassVar = True
    trains_shards: ClassVar = False
    least_rate: ClassVar = 2e-5

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        """Build it over the trainable parameters; vectors (norms, biases) do not decay."""
        defaults = {"lr": optim.lr, "beta2_decay": self.beta2_decay, "d": self.clip, "eps2": self.min_scale}
        return ExactAdafactor(decay_groups(trainable(model), optim), defaults)

    def slowest_decay(self, optim: OptimSettings) -> float:
        """Return 0: its averages are in float32."""
        return 0.0

    def state_bytes(self, model: nn.Module) -> int:
        """Return the bytes of row and column means, or of a vector's second moment, and of left-out bits."""
        parameters = trainable(model)
        states = [_new_state(parameter.to("meta")) for parameter in parameters]
        tensors = [value for state in states for name, value in state.items() if name != "step"]
        return bytes_here(tensors) + left_out_bytes(parameters)


class ExactAdafactor(ExactOptimizer):
    """Adafactor whose state is in float32 whatever the number type of its parameters is."""

    own_dtypes = frozenset(("row_var", "col_var", "variance"))

    def new_state(self, parameter: Tensor, group: ParameterGroup) -> dict[str, Tensor]:
        """Return the step and the means of squared gradients, in float32 or wider."""
        return _new_state(parameter)

    def update(
        self, weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: ParameterGroup, parameter: Tensor
    ) -> None:
        adafactor(
            [weight],
            [gradient],
            [state.get("row_var")],
            [state.get("col_var")],
            [state.get("variance")],
            [state["step"]],
            foreach=False,
            d=group["d"],
            lr=group["lr"],
            beta2_decay=group["beta2_decay"],
            weight_decay=group["weight_decay"],
            eps1=torch.finfo(weight.dtype).eps,
            eps2=group["eps2"],
            maximize=False,
        )


def _new_state(parameter: Tensor) -> dict[str, Tensor]:
    dtype, shape = torch.promote_types(parameter.dtype, torch.float32), parameter.shape
    shapes = {"variance": tuple(shape)}
    if parameter.ndim >= 2:
        shapes = {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}
    state = {name: torch.zeros(size, dtype=dtype, device=parameter.device) for name, size in shapes.items()}
    return {"step": torch.zeros((), dtype=torch.float32), **state}
