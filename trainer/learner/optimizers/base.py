"""The kind of plug-in `optimizer`: what builds the optimizer of a learner, and the checks of every one of them."""

from collections.abc import Iterable
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from envgym.config.plugins import PluginKind
from envgym.errors import SettingsError
from envgym.trainer.learner.optimizers.exact import here
from envgym.trainer.learner.settings import LARGEST_BETA, OptimSettings
from envgym.trainer.tables import KINDS


@runtime_checkable
class OptimizerBuilder(Protocol):
    """Builds the optimizer of a learner; its settings are those of `optim.optimizer`.

    A class whose rate is relative to the weights also has a number `least_rate`: no run starts with a smaller rate.
    """

    trains_bfloat16: bool
    """Whether weights in bfloat16 lose no update to rounding."""
    trains_shards: bool
    """Whether several learner ranks may each hold a shard of the weights."""

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        """Return an optimizer of the trainable parameters, plain or sharded."""
        ...

    def slowest_decay(self, optim: OptimSettings) -> float:
        """Return the largest decay rate of its averages that have the number type of the weights; 0: there are none."""
        ...

    def state_bytes(self, model: nn.Module) -> int:
        """Return the bytes that it keeps for the trainable parameters on this rank, apart from the gradients."""
        ...


OPTIMIZER: Final[PluginKind[OptimizerBuilder]] = KINDS["optimizer"]


def build_optimizer(model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
    """Build the optimizer that the settings name, of the trainable parameters. Raises: as `check_optimizer`."""
    parameters = trainable(model)
    is_short = any(parameter.dtype is torch.bfloat16 for parameter in parameters)
    is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters)
    return check_optimizer(optim, is_bfloat16=is_short, is_sharded=is_sharded)(model, optim)


def check_optimizer(optim: OptimSettings, *, is_bfloat16: bool, is_sharded: bool) -> OptimizerBuilder:
    """Return the builder of the optimizer that the settings name.

    Args:
        optim: settings of the optimizer.
        is_bfloat16: whether weights that train are in bfloat16.
        is_sharded: whether several learner ranks hold shards of the weights.

    Raises: SettingsError: it cannot train such weights. UnknownName: there is no such optimizer.
    """
    builder, name = OPTIMIZER.build(optim.optimizer, where="optim.optimizer"), optim.optimizer.name
    must, do = "lose no update of weights in bfloat16 to rounding", "set model.precision=mixed, or name adamw"
    fits = builder.trains_bfloat16 or not is_bfloat16
    SettingsError.unless(fits, "optim.optimizer", must, name, where="optim", do=do)
    must, do = (
        "train shards of weights where several ranks learn",
        "set launch.learners=1 without torchrun, or name adamw or muon",
    )
    fits = builder.trains_shards or not is_sharded
    SettingsError.unless(fits, "optim.optimizer", must, name, where="optim", do=do)
    must = f"be at most {LARGEST_BETA} for weights in bfloat16, whose moments follow no slower average"
    largest, do = builder.slowest_decay(optim), "lower it, or set model.precision=mixed"
    what = "optim.betas" if largest in optim.betas else "decay rates of optim.optimizer"
    SettingsError.unless(largest <= LARGEST_BETA or not is_bfloat16, what, must, largest, where="optim", do=do)
    return builder


def check_rates(builder: OptimizerBuilder, optim: OptimSettings, rates: Iterable[tuple[str, float]]) -> None:
    """Refuse rates that were chosen for another optimizer.

    Args:
        builder: of the optimizer.
        optim: settings of the optimizer.
        rates: name in the settings and value of each learning rate.

    Raises: SettingsError: one is smaller than the builder's `least_rate`.
    """
    least, name = getattr(builder, "least_rate", 0.0), optim.optimizer.name
    must = f"be at least {least} with {name}, whose rate is relative to the weights"
    do = "set it: weights with a root mean square of 0.02 move as far at 5e-4 as with adamw at 1e-5"
    for rate_name, rate in rates:
        SettingsError.unless(rate >= least, rate_name, must, rate, where="optim.optimizer", do=do)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that train."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def decay_groups(parameters: Iterable[nn.Parameter], optim: OptimSettings) -> list[dict[str, Any]]:
    """Return the groups of parameters that decay and that do not: vectors (norms, biases) do not."""
    listed = list(parameters)
    groups = [
        {"params": [p for p in listed if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in listed if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def bytes_here(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; of sharded ones, those on this rank."""
    return sum(here(parameter).numel() * parameter.element_size() for parameter in parameters)


def left_out_bytes(parameters: Iterable[Tensor]) -> int:
    """Return the bytes of the bits that bfloat16 leaves out of trained weights; 0 for other number types."""
    return bytes_here(parameter for parameter in parameters if parameter.dtype is torch.bfloat16)
