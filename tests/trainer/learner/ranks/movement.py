"""How far 50 updates move the weights by precision; run as a program, it makes them as one rank of several."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from envgym.trainer.batch.rows import MicroBatch, TrainRow, scored_row
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.optimizers.exact import LEFT_OUT, here, joined
from envgym.trainer.learner.processes import ONE_PROCESS
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.learner.ranks.sharded import RankedProcesses, reshard
from envgym.trainer.learner.settings import OptimSettings
from tests.trainer.learner.packing.forest import VOCABULARY, build

CPU: Final = torch.device("cpu")
OptimizerOf = Callable[[nn.Module, OptimSettings], torch.optim.Optimizer]
STEPS: Final = 50
RATES: Final = (1e-6, 5e-6, 1e-5, 1e-4) if "ENVGYM_MOVEMENT_ALL" in os.environ else (1e-6, 1e-4)
"""The smallest and the largest learning rate: every update takes long. `make nightly` has those between, too."""
PRECISIONS: Final = {  # dtype of the weights, and of the matrix products where it is another
    "float32": (torch.float32, None),
    "mixed": (torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, None),
}


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What is trained, and how."""

    precision: str
    rate: float
    lora: bool = False
    optimizer: str = "adamw"


MOVEMENTS: Final = [
    movement
    for precision in PRECISIONS
    for movement in (
        *(Movement(precision=precision, rate=rate) for rate in RATES),
        *(Movement(precision=precision, rate=rate, lora=True) for rate in RATES),
        Movement(precision=precision, rate=1e-5, optimizer="muon"),
    )
]
ON_RANKS: Final = [item for item in MOVEMENTS if item.precision != "float32"]
"""Those that several ranks make."""


def model_of(movement: Movement) -> Any:  # PreTrainedModel or PeftModel
    """Return a model with weights of the usual size, the same numbers in every precision."""
    model: Any = build("llama", dtype=torch.float32, initializer_range=0.02, num_hidden_layers=1)
    nn.Module.to(model, torch.bfloat16)
    nn.Module.to(model, PRECISIONS[movement.precision][0])
    if movement.lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
    return model


def rows() -> list[TrainRow]:
    """Return three rows of random tokens, all but the first scored."""
    rng = torch.Generator().manual_seed(3)
    return [scored_row(tuple(torch.randint(VOCABULARY, (9,), generator=rng).tolist()), first=1) for _ in range(3)]


def distance(movement: Movement, group: RankGroup | None, optimizer_of: OptimizerOf | None = None) -> float:
    """Return the norm of the change of all trained weights, with the bits that bfloat16 leaves out.

    `optimizer_of` replaces the learner's own optimizer.
    """
    optim = OptimSettings.model_validate({"lr": movement.rate, "optimizer": movement.optimizer, "packing": False})
    learner = Learner(
        model_of(movement),
        optim=optim,
        num_steps=STEPS,
        device=CPU,
        autocast=PRECISIONS[movement.precision][1],
        processes=ONE_PROCESS if group is None else RankedProcesses(group),
    )
    if optimizer_of is not None:
        learner.optimizer = optimizer_of(learner.model, optim)
    start = [here(parameter).detach().float().clone() for parameter in learner.parameters]

    def loss_fn(batch: MicroBatch) -> Tensor:
        with learner.forward.mode():
            scored = learner.forward.hidden_states(batch).logprobs(temperature=1.0)
        return -(scored.logprobs_BT * batch.scored_mask_BT).sum() / 24

    batches = learner.micro_batches(rows(), range(3))
    for _ in range(STEPS):
        learner.update(batches, loss_fn)
    if group is not None:
        reshard(learner.model)
    squares = [(_exact(learner, p) - first).square().sum() for p, first in zip(learner.parameters, start, strict=True)]
    total = torch.stack(squares).sum()
    return float((total if group is None else group.sum(total)).sqrt())


def _exact(learner: Learner, parameter: nn.Parameter) -> Tensor:
    weight, state = here(parameter).detach(), learner.optimizer.state[parameter]
    if parameter.dtype is torch.bfloat16 and LEFT_OUT in state:
        return joined(weight, here(state[LEFT_OUT]))
    return weight.float()


def main(out: Path) -> None:
    """Measure every movement as one rank; rank 0 writes the distances."""
    torch.set_num_threads(1)
    group = RankGroup(CPU, Meeting.of_torchrun())
    distances = [distance(movement, group) for movement in ON_RANKS]
    if group.is_first:
        torch.save(distances, out)
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
