"""An update waits for its device a fixed number of times, not once for each micro-batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.learner.train_step import StepInputs
from envgym.trainer.methods.corrections import Correction, NoCorrection, Tis
from envgym.trainer.methods.losses import PpoClip
from tests.trainer.learner.test_learner import CPU, build_model, build_rows


class DeviceWaits(TorchDispatchMode):
    """Counts where a GPU is waited for: numbers read, tensors of a size that it finds out or made of Python numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.num_read = self.num_made = self.num_sized = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.num_read += func is torch.ops.aten._local_scalar_dense.default
        self.num_made += func is torch.ops.aten.lift_fresh.default
        self.num_sized += func in SIZED or _is_indexed_by_mask(func, args)
        return func(*args, **(kwargs or {}))


SIZED = (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default, torch.ops.aten._unique2.default)


def _is_indexed_by_mask(func: Any, args: Sequence[Any]) -> bool:
    indexes = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
    return func in indexes and any(index is not None and index.dtype is torch.bool for index in args[1])


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("correction", [NoCorrection(), Tis()], ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("with_old_logprobs", [False, True])
def test_update_reads_one_number_however_many_micro_batches(
    with_old_logprobs: bool, micro_batch_tokens: int, correction: Correction, packing: bool
) -> None:
    model = build_model(dtype=torch.float32)
    rows = build_rows(model)
    optim = OptimSettings(micro_batch_tokens=micro_batch_tokens, packing=packing)
    learner = Learner(model, optim=optim, num_steps=1, device=CPU)
    settings = ObjectiveSettings.model_validate({"entropy_coef": 0.1})
    objective = Objective(loss=PpoClip(), correction=correction, settings=settings, temperature=1.0)
    inputs = StepInputs.compute(
        rows,
        objective,
        forward=learner.forward,
        critic=None,
        reference=None,
        num_minibatches=1 if with_old_logprobs else None,
        step=0,
    )
    batches = learner.micro_batches(rows, range(len(rows)))
    assert len(batches) == {1: 6, 20: 3 if packing else 4, 10_000: 1}[micro_batch_tokens]
    with DeviceWaits() as waits:
        learner.update(batches, inputs.loss_fn(range(len(rows))))
    assert waits.num_read == 1, "the norm of the gradient; the losses are read together"
    assert not waits.num_made
    # On a CPU the attention of packs finds out which keys a block has.
    assert packing or not waits.num_sized
