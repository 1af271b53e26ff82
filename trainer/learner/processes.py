"""What a learner does that takes several processes where there are several: here, one process."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.metrics.update import UpdateMetrics


class OneProcess:
    """The learner is alone: it computes all rows, and what it has counted is all there is."""

    is_first = True
    """Whether metrics of all rows are counted here; of several ranks, by one."""

    def forward_pass(
        self, model: nn.Module, optim: OptimSettings, *, device: torch.device, autocast: torch.dtype | None
    ) -> ForwardPass:
        """Prepare the forward passes of a model; arguments as for `ForwardPass`."""
        return ForwardPass(model, optim, device=device, autocast=autocast)

    def read(self, losses: Sequence[Float[Tensor, ""]]) -> list[float]:
        """Return numbers that are finite where the losses of all micro-batches are; waits for the device."""
        return torch.stack(list(losses)).tolist() if losses else []

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of parameters that every process holds whole, such as the critic's."""

    def clip_gradient(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Clip the norm of the model's gradient; return it before clipping."""
        return nn.utils.clip_grad_norm_(parameters, max_norm).item()

    def metrics_of_all(self, metrics: UpdateMetrics) -> UpdateMetrics:
        """Return the metrics of all micro-batches of a train step."""
        return metrics

    def complete(self, record: TokenRecord) -> None:
        """Add to a record the rows that other processes computed."""


ONE_PROCESS = OneProcess()
