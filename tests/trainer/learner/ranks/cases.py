"""Train steps that every number of ranks must make alike; run as a program, it makes them as one rank of several."""

import random
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.rnn import pad_sequence

from envgym.agents.models.weights import AdaptedWeights
from envgym.trainer.batch.rows import TrainRow, ValueTarget
from envgym.trainer.learner.critic import Critic
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.processes import ONE_PROCESS
from envgym.trainer.learner.ranks.group import RankGroup
from envgym.trainer.learner.ranks.learner import RankCalls, RankLearner
from envgym.trainer.learner.ranks.meeting import Meeting
from envgym.trainer.learner.ranks.sharded import RankedProcesses, gather_weights, scatter_weights, shard
from envgym.trainer.learner.settings import CriticSettings, ObjectiveSettings, OptimSettings
from envgym.trainer.learner.token_record import TokenRecord
from envgym.trainer.methods.corrections import Correction, NoCorrection, Tis
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.methods.row_ids import RowId
from tests.trainer.learner.packing.forest import VOCABULARY, build

CPU = torch.device("cpu")
OPTIM = {"lr": 1e-2, "optimizer": {"name": "adamw", "eps": 1e-3}, "grad_clip": 0.05, "weight_decay": 0.1}


COMPILING = (".torch.jit.script_method. is deprecated", "The .grad attribute of a Tensor that is not a leaf")
"""Warnings of what torch does itself while it compiles."""


@dataclass(frozen=True, kw_only=True)
class Case:
    optim: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)
    correction: Correction = field(default_factory=NoCorrection)
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    model: dict[str, Any] = field(default_factory=dict)
    num_groups: int = 5
    lora: bool = False
    critic: bool = False
    checkpointing: bool = False
    traced: bool = False
    """Compiled layers are traced and differentiated as ever, and run without machine code: in a tenth of the time."""


CASES = {
    "packed": Case(),
    "padded": Case(optim={"packing": False}),
    "packed float32": Case(dtype=torch.float32),
    "padded float32": Case(dtype=torch.float32, optim={"packing": False}),
    "mixed": Case(dtype=torch.float32, autocast=torch.bfloat16),
    "one row": Case(num_groups=0),
    "accumulated": Case(optim={"micro_batch_tokens": 12}),
    "minibatches and epochs": Case(optim={"minibatches": 2, "epochs": 2, "micro_batch_tokens": 20}, correction=Tis()),
    "kl and entropy": Case(objective={"kl_coef": 0.1, "entropy_coef": 0.01}),
    "critic": Case(critic=True, optim={"minibatches": 2}),
    "lora": Case(lora=True),
    "tied": Case(model={"tie_word_embeddings": True}),
    "recomputed": Case(checkpointing=True, optim={"micro_batch_tokens": 30}),
    "compiled": Case(optim={"compile_layers": True, "micro_batch_tokens": 40}),
}


def cases_of(num_ranks: int) -> dict[str, Case]:
    """Return the cases of a number of ranks: only two ranks make machine code of compiled layers."""
    return CASES if num_ranks == 2 else {**CASES, "compiled": replace(CASES["compiled"], traced=True)}


def rows_of(case: Case) -> list[TrainRow]:
    """Return rows of trees of very different sizes; the last is alone in its group."""
    rng = random.Random(7)
    rows: list[TrainRow] = []
    for group in range(case.num_groups):
        prompt = [rng.randrange(VOCABULARY) for _ in range(2 + 3 * group)]
        for _ in range(1 + 3 * (group % 3)):
            middle = [*prompt, *[rng.randrange(2) for _ in range(3)]]
            rows.append(_row(rng, middle, rng.randint(1, 9), group))
    return [*rows, _row(rng, [1, 2], 4, case.num_groups)]


def _row(rng: random.Random, context: list[int], length: int, group: int) -> TrainRow:
    ids = (*context, *[rng.randrange(VOCABULARY) for _ in range(length)])
    mask = tuple(place >= len(context) for place in range(len(ids)))

    def numbers(spread: float, mean: float = 0.0) -> tuple[float, ...]:
        return tuple((mean + rng.uniform(-spread, spread)) * trains for trains in mask)

    targets = tuple(ValueTarget(0.0, rng.random()) if trains else None for trains in mask)
    return TrainRow(
        token_ids=ids,
        loss_mask=mask,
        advantages=numbers(2.0),
        behavior_logprobs=numbers(0.3, -3.3),
        weights=tuple(rng.choice((0.5, 1.0)) for _ in ids),
        value_targets=targets,
        id=RowId(group=group),
    )


def model_of(case: Case, seed: int = 0) -> Any:  # PreTrainedModel or PeftModel
    model: Any = build("llama", dtype=case.dtype, **case.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=case.dtype))
    if case.lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, config, autocast_adapter_dtype=False)
        model.to(case.dtype)
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def learner_of(case: Case, group: RankGroup | None, optim: OptimSettings) -> Learner:
    """Build the learner of a case: one process's, or this rank's."""
    model = model_of(case)
    head = Critic(model, CriticSettings(lr=0.01), optim, device=CPU) if case.critic else None
    frozen: nn.Module | None = model_of(case, seed=1) if case.objective.get("kl_coef") else None
    processes = ONE_PROCESS if group is None else RankedProcesses(group)
    learner = Learner(
        model, optim=optim, num_steps=4, device=CPU, autocast=case.autocast, critic=head, processes=processes
    )
    if frozen is not None and group is not None:
        shard(frozen, group.mesh, autocast=case.autocast)
    learner.reference = None if frozen is None else lambda: nullcontext(frozen)
    return learner


def run_case(case: Case, group: RankGroup | None) -> dict[str, Any]:
    """Make the train step; return its metrics, the gradients of the last update, and the weights after it."""
    compiler = partial(torch.compile, backend="aot_eager") if case.traced else torch.compile
    with patch.object(torch, "compile", compiler):
        return _train_step(case, group)


def _train_step(case: Case, group: RankGroup | None) -> dict[str, Any]:
    optim = OptimSettings.model_validate({**OPTIM, **case.optim})
    learner = learner_of(case, group, optim)
    gradients: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in learner.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = _whole(parameter.grad)

    learner.optimizer.register_step_pre_hook(keep)
    goal = Objective(
        loss=PpoClip(),
        correction=case.correction,
        settings=ObjectiveSettings.model_validate(case.objective),
        temperature=1.0,
    )
    rows = rows_of(case)
    record = TokenRecord()
    metrics = learner.train_step(rows, goal, step=0, record=record)
    logprobs = learner.compute_logprobs(rows, 1.0)
    weights = {name: _whole(parameter) for name, parameter in learner.model.named_parameters()}
    if learner.critic is not None:
        weights |= {f"critic.{name}": value.detach().clone() for name, value in learner.critic.head.named_parameters()}
    record_NT = {name: pad_sequence(list(map(torch.tensor, of))) for name, of in record.of_rows(rows).items()}
    return {
        "metrics": metrics,
        "gradients": gradients,
        "weights": weights,
        "logprobs": logprobs,
        "record": record_NT,
    }


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights_there_and_back(group: RankGroup) -> float:
    """Scatter another model's weights and gather them; return the largest difference, which is 0."""
    case = CASES["packed"]
    sharded, source, result = model_of(case), model_of(case, seed=3), model_of(case, seed=4)
    shard(sharded, group.mesh)
    scatter_weights(sharded, source.named_parameters() if group.is_first else None, group)
    gather_weights(sharded, result)
    pairs = zip(source.parameters(), result.parameters(), strict=True)
    return max(_gap(one, other) for one, other in pairs)


def base_states(group: RankGroup) -> list[object]:
    """Return on rank 0 which base a learner with adapters sends, before and after a forward pass; else nothing."""
    case, calls = CASES["lora"], RankCalls(group)
    optim = OptimSettings.model_validate(OPTIM)
    learner = RankLearner(model_of(case), calls, whole=None, optim=optim, num_steps=4, device=CPU)
    if not group.is_first:
        calls.follow()
        return []
    states: list[object] = []
    for _ in range(2):
        weights = learner.weights()
        assert isinstance(weights, AdaptedWeights)
        states.append(weights.base_state)
        learner.compute_logprobs(rows_of(case), 1.0)  # leaves parameters gathered
    calls.end()
    return states


def _gap(one: Tensor, other: Tensor) -> float:
    return (one - other).detach().abs().max().item()


def main(out: Path) -> None:
    """Run cases as one rank; rank 0 writes what it found."""
    warnings.simplefilter("error")
    for message in COMPILING:
        warnings.filterwarnings("ignore", message)
    torch.set_num_threads(1)
    meeting = Meeting.of_torchrun()
    group = RankGroup(CPU, meeting)
    found: dict[str, Any] = {name: run_case(case, group) for name, case in cases_of(meeting.size).items()}
    found["there and back"] = weights_there_and_back(group)
    found["base states"] = base_states(group)
    if group.is_first:
        torch.save(found, out)
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
