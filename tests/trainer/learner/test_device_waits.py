"""An update waits for its device a fixed number of times, not once for each micro-batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.corrections import Correction, NoCorrection, Tis
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.sections import ObjectiveSettings, OptimSettings
from tests.trainer.learner.test_learner import CPU, build_model, build_rows


class NumbersRead(TorchDispatchMode):
    """Counts the numbers that are read from tensors, for each of which a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("correction", [NoCorrection(), Tis()], ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10_000])
def test_update_reads_one_number_however_many_micro_batches(micro_batch_tokens: int, correction: Correction) -> None:
    model = build_model(dtype=torch.float32)
    rows = build_rows(model)
    optim = OptimSettings(micro_batch_tokens=micro_batch_tokens)
    learner = Learner(model, optim=optim, num_steps=1, device=CPU)
    settings = ObjectiveSettings.model_validate({"entropy_coef": 0.1})
    objective = Objective(loss=PpoClip(), correction=correction, settings=settings, temperature=1.0)
    inputs = learner._step_inputs(rows, objective, with_old_logprobs=False, step=0)
    batches = learner.micro_batches(rows, range(len(rows)))
    assert len(batches) == {1: 6, 20: 3, 10_000: 1}[micro_batch_tokens]
    with NumbersRead() as read:
        learner.update(batches, learner._loss_fn(inputs, range(len(rows))))
    assert read.count == 1, "the norm of the gradient; the losses are read together"
