"""Memory: what a block holds at its peak, and what training a model holds between micro-batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from envgym.agents.settings import LoraSettings
from envgym.errors import RunError
from envgym.trainer.batch.rows import MicroBatch, TrainRow, scored_row
from envgym.trainer.checks.memory import check_memory
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.memory import measure_memory, micro_batch_memory, state_memory
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.models.policy_model import add_adapters
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.workflows.dry_run import backward_largest_micro_batch

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.parametrize("size", [64, 128])
def test_peak_is_what_the_block_held_at_most(size: int) -> None:
    with measure_memory(CPU) as use:
        held = torch.ones(size * MIB // 4)
        del held
        again = torch.ones(size * MIB // 8)
    assert again.numel() > 0
    assert (use.peak, use.remaining) == (size * MIB, size * MIB // 2)


def test_peak_of_earlier_work_does_not_count() -> None:
    before = torch.ones(128 * MIB // 4)
    del before
    with measure_memory(CPU) as use:
        small = torch.ones(32 * MIB // 4)
    assert small.numel() > 0
    assert use.peak == 32 * MIB


def test_state_is_weights_gradients_and_two_moments() -> None:
    model = nn.Linear(10, 6)  # 66 numbers of 4 bytes
    state = state_memory(model, OptimSettings(), reference=False)
    assert (state.weights, state.gradients, state.optimizer, state.total) == (264, 264, 528, 1056)


def test_frozen_weights_have_neither_gradient_nor_moments() -> None:
    model = nn.Sequential(nn.Linear(10, 6), nn.Linear(6, 1))
    model[0].requires_grad_(False)
    state = state_memory(model, OptimSettings(), reference=False)
    assert (state.weights, state.gradients, state.optimizer) == (4 * 73, 4 * 7, 8 * 7)


def test_reference_is_a_second_set_of_weights() -> None:
    model = nn.Linear(10, 6, dtype=torch.bfloat16)
    weights = [state_memory(model, OptimSettings(), reference=has_one).weights for has_one in (True, False)]
    assert weights == [2 * 132, 132]


TINY: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SMOLLM2: dict[str, Any] = {  # with 3 of its 30 layers, and a sixth of its vocabulary
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "vocab_size": 8192,
}
OBJECTIVE = Objective(
    loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings.model_validate({}), temperature=1.0
)


def learner_of(shape: dict[str, Any], *, recomputes: bool = False, **optim: Any) -> Learner:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**({"vocab_size": 300, "max_position_embeddings": 2048} | shape)))
    if recomputes:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Learner(model, optim=OptimSettings(**optim), num_steps=1, device=CPU)


def unlike_rows(number: int, length: int) -> list[TrainRow]:
    return [scored_row(tuple((row + 7 * place) % 300 for place in range(length)), first=1) for row in range(number)]


def measured_peak(learner: Learner, rows: list[TrainRow]) -> tuple[int, int]:
    """Return the most that a micro-batch held beyond weights, gradients and optimizer, and its number of tokens."""
    backward_largest_micro_batch(learner, rows, OBJECTIVE)  # makes the gradients
    with measure_memory(CPU) as use:
        tokens = backward_largest_micro_batch(learner, rows, OBJECTIVE)
    return use.peak, tokens


@pytest.mark.parametrize("shape,lengths", [(TINY, (8, 256)), (SMOLLM2, (2, 256))], ids=["tiny", "smollm2"])
@pytest.mark.parametrize("way", ["packed", "padded", "checkpointed"])
def test_estimate_is_within_a_quarter_of_the_peak(shape: dict[str, Any], lengths: tuple[int, int], way: str) -> None:
    learner = learner_of(shape, recomputes=way == "checkpointed", packing=way != "padded")
    peak, tokens = measured_peak(learner, unlike_rows(*lengths))
    assert tokens == lengths[0] * lengths[1]
    assert 0.75 < micro_batch_memory(learner.forward).of(tokens) / peak < 1.25


def settings(**optim: int) -> TrainSettings:
    data = {"run": {"steps": 1}, "envs": [{"id": "math/arithmetic-v0"}], "optim": optim}
    return train_settings({**data, "rollout": {"groups": 8, "group_size": 8}})


@pytest.fixture
def free_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the system say how much memory is free, MiB."""
    file = tmp_path / "meminfo"
    monkeypatch.setattr("envgym.agents.models.loading._MEMINFO", file)

    def write(mib: int) -> None:
        file.write_text(f"MemAvailable: {mib * 1024} kB\n")

    return write


def warn_of(learner: Learner, asked: TrainSettings) -> None:
    num_tokens = asked.rollout.groups * asked.rollout.group_size * asked.agent.max_context_tokens
    check_memory([learner], asked.optim, asked.objective, tokens_per_step=num_tokens)


def test_micro_batch_that_will_not_fit_is_said_with_one_that_will(free_mib: Callable[[int], None]) -> None:
    learner = learner_of(TINY)
    needed = (
        micro_batch_memory(learner.forward).of(8192)
        + 3 * state_memory(learner.model, learner.optim, reference=False).weights
    )
    free_mib(needed // MIB + 1)
    warn_of(learner, settings())  # says nothing
    free_mib(48)
    with pytest.warns(UserWarning, match="lower optim.micro_batch_tokens to") as warned:
        warn_of(learner, settings())
    text = str(warned[0].message)
    assert f"got 8192 where {needed / 2**30:.1f} GiB are needed and 0.0 GiB are free (cpu)" in text
    fitting = int(text.split()[-1].rstrip("."))
    assert fitting % 128 == 0
    assert 2048 < fitting < 4096  # about 10.8 kB a token, 10 layers
    warn_of(learner, settings(micro_batch_tokens=fitting))


def test_model_that_leaves_room_for_no_token_is_said(free_mib: Callable[[int], None]) -> None:
    free_mib(1)
    with pytest.warns(UserWarning, match="set model.gradient_checkpointing=true, lower agent.max_context_tokens, or"):
        warn_of(learner_of(TINY), settings())


@pytest.mark.parametrize("rows,do", [((2, 256), "lower optim.micro_batch_tokens to 256"), ((1, 256), "set model.grad")])
def test_micro_batch_that_runs_out_of_memory_says_what_to_do(rows: tuple[int, int], do: str) -> None:
    learner = learner_of(TINY, micro_batch_tokens=600)
    batches = learner.micro_batches(unlike_rows(*rows), range(rows[0]))

    def loss_fn(batch: MicroBatch) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(RunError, match=f"a micro-batch of {rows[0] * 256} tokens ran out of it .cpu.; {do}"):
        learner.update(batches, loss_fn)


@pytest.mark.parametrize("recomputes", [False, True])
def test_casts_of_weights_are_counted_once_and_not_by_the_token(*, recomputes: bool) -> None:
    learner = learner_of(SMOLLM2, recomputes=recomputes)
    mixed = ForwardPass(learner.model, learner.optim, device=CPU, autocast=torch.bfloat16)
    wide, narrow = micro_batch_memory(learner.forward), micro_batch_memory(mixed)
    layers = [part for name, part in learner.model.named_modules() if isinstance(part, nn.Linear) and "layers" in name]
    assert (wide.casts, narrow.casts) == (0, 2 * sum(layer.weight.numel() for layer in layers))
    assert narrow.per_token <= wide.per_token
    assert narrow.per_token_in_layer < wide.per_token_in_layer
    assert narrow.of(0) == narrow.casts + narrow.head


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("tokens", [48, 128])
def test_casts_of_frozen_weights_are_not_counted_by_the_token(tokens: int, *, recomputes: bool) -> None:
    """Autocast does not keep casts of frozen weights, so every product has one, whatever the tokens."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    plain = learner_of(wide, recomputes=recomputes)
    learner = Learner(
        add_adapters(plain.model, LoraSettings(rank=4)),
        optim=OptimSettings(),
        num_steps=1,
        device=CPU,
        autocast=torch.bfloat16,
    )
    peak, num_tokens = measured_peak(learner, unlike_rows(tokens // 16, 16))
    assert num_tokens == tokens
    assert 0.75 < micro_batch_memory(learner.forward).of(tokens) / peak < 1.25
