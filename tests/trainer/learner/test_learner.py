"""The learner: an update is exact however its rows are dealt, and starts at ratio 1; a frozen reference."""

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from envgym.agents.models.weights import widen_head
from envgym.config.plugins import Choice
from envgym.errors import InvalidInput
from envgym.trainer.batch.rows import TrainRow, padded_batches
from envgym.trainer.learner.causal_lm import without_dropout
from envgym.trainer.learner.checkpoint import keep_reference, open_reference
from envgym.trainer.learner.learner import Learner, schedule
from envgym.trainer.learner.objective import Objective
from envgym.trainer.learner.packing.support import can_pack
from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
from envgym.trainer.methods.corrections import NoCorrection, Tis
from envgym.trainer.methods.losses import Aggregation, PpoClip
from envgym.trainer.methods.losses.aggregate import AGGREGATION
from tests.agents.policies.small_models import llama
from tests.support.logprobs import token_logprobs
from tests.trainer.learner.packing.forest import kept_packs

CPU = torch.device("cpu")
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def build_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    for part in list(model.modules()):
        for name, norm in part.named_children():
            if isinstance(norm, LlamaRMSNorm):  # computes in float32 whatever it is given
                setattr(part, name, torch.nn.RMSNorm(16, eps=1e-6))
    torch.nn.Module.to(model, dtype)
    return model


def build_rows(model: LlamaForCausalLM, lengths: Sequence[int] = (7, 12, 5, 9, 12, 3)) -> list[TrainRow]:
    """Random rows whose behavior log-probs are the model's own."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number, length in enumerate(lengths):
        ids = torch.randint(0, 23, (1, length), generator=generator)
        mask = [place >= 2 and (place + number) % 3 != 0 for place in range(length)]
        with torch.no_grad():
            scored = token_logprobs(model, input_ids_BT=ids, attention_mask_BT=torch.ones_like(ids)).logprobs_BT[0]
        rows.append(
            TrainRow(
                token_ids=tuple(ids[0].tolist()),
                loss_mask=tuple(mask),
                advantages=tuple((1.5 - number) * trains for trains in mask),
                behavior_logprobs=tuple(x * trains for x, trains in zip(scored.tolist(), mask, strict=True)),
                weights=tuple(1.0 if number % 2 else 0.5 for _ in mask),
            )
        )
    return rows


def aggregation(name: str) -> Aggregation:
    """Build an aggregation; the one with a constant takes 12 tokens."""
    constant = {"max_tokens": 12} if name == "seq-mean-token-sum-norm" else {}
    return AGGREGATION.build(Choice.model_validate({"name": name, **constant}))


def objective(mode: str = "token-mean", **settings: float | str) -> Objective:
    return Objective(
        loss=PpoClip(),
        correction=NoCorrection(),
        aggregation=aggregation(mode),
        settings=ObjectiveSettings.model_validate(settings),
        temperature=1.0,
    )


def weights_after(model: LlamaForCausalLM, rows: list[TrainRow], goal: Objective, **optim: float) -> torch.Tensor:
    """Return all weights after one train step of plain-looking AdamW."""
    trained = copy.deepcopy(model)
    settings = OptimSettings.model_validate(
        {"lr": 1e-2, "grad_clip": 1e9, "optimizer": {"name": "adamw", "eps": 1e-3}, **optim}
    )
    learner = Learner(trained, optim=settings, num_steps=10, device=CPU)
    learner.train_step(rows, goal, step=0)
    return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])


@pytest.mark.parametrize("mode", MODES)
def test_update_does_not_depend_on_micro_batches(mode: str) -> None:
    model = build_model()
    rows = build_rows(model)
    whole = weights_after(model, rows, objective(mode), micro_batch_tokens=10_000)
    pieces = weights_after(model, rows, objective(mode), micro_batch_tokens=1)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert (whole - before).abs().max() > 1e-3
    assert torch.allclose(whole, pieces, rtol=0, atol=1e-9)


def test_gradient_is_that_of_the_written_out_formula() -> None:
    """token-mean of -A log pi at ratio 1, with row weights: compare with one dense computation."""
    model = build_model()
    rows = build_rows(model)
    trained = copy.deepcopy(model)
    learner = Learner(trained, optim=OptimSettings(lr=0.0001, grad_clip=1e9), num_steps=1, device=CPU)
    seen: list[torch.Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in trained.parameters() if p.grad is not None]))
    )
    learner.train_step(rows, objective(), step=0)
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for row in rows:
        logits = model(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
        for place, trains in enumerate(row.loss_mask):
            if trains:
                total = total - row.weights[place] * row.advantages[place] * logits[place - 1, row.token_ids[place]]
                weight += row.weights[place]
    (total / weight).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert torch.allclose(seen[0], expected, rtol=1e-5, atol=1e-7)  # log-probs are reduced in float32 at least


def test_first_ratio_is_exactly_one_and_the_gap_zero() -> None:
    model = build_model(dtype=torch.float32)
    rows = build_rows(model)
    learner = Learner(model, optim=OptimSettings(epochs=1, minibatches=1), num_steps=1, device=CPU)
    corrected = Objective(loss=PpoClip(), correction=Tis(), settings=ObjectiveSettings(), temperature=1.0)
    metrics = learner.train_step(rows, corrected, step=0)
    assert (metrics["ratio/min"], metrics["ratio/max"]) == (1.0, 1.0)
    assert metrics["logprob_gap/max_abs"] < 1e-5
    assert metrics["logprob_gap/truncated"] == 0.0


def shared(rows: Sequence[TrainRow]) -> list[TrainRow]:
    """Return the rows behind one prompt of four tokens, in two branches."""
    return [
        TrainRow(
            token_ids=(1, 2, 3, 4 + number % 2, *row.token_ids),
            loss_mask=(False, False, False, True, *row.loss_mask),
            advantages=(0.0, 0.0, 0.0, 0.5, *row.advantages),
            behavior_logprobs=(0.0, 0.0, 0.0, -3.0, *row.behavior_logprobs),
            weights=(1.0, 1.0, 1.0, 1 / 3, *row.weights),
        )
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_packing_changes_no_update(mode: str) -> None:
    """Two epochs of two updates, with a correction, a reference and entropy: all that reads log-probs."""
    model = build_model()
    rows = shared(build_rows(model))
    goal = replace(objective(mode, kl_coef=0.1, entropy_coef=0.01), correction=Tis(), temperature=0.8)

    def train(packing: bool, tokens: int) -> torch.Tensor:
        trained, reference = copy.deepcopy(model), build_model(7)
        optim = OptimSettings(
            lr=1e-2,
            optimizer=Choice.model_validate({"name": "adamw", "eps": 1e-3}),
            minibatches=2,
            epochs=2,
            packing=packing,
            micro_batch_tokens=tokens,
            grad_clip=1e9,
        )
        learner = Learner(trained, optim=optim, num_steps=1, device=CPU, reference=lambda: nullcontext(reference))
        learner.train_step(rows, goal, step=0)
        return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])

    padded = train(False, 10_000)
    assert torch.allclose(train(True, 10_000), padded, rtol=0, atol=1e-9)
    assert torch.allclose(train(True, 20), padded, rtol=0, atol=1e-9)


@pytest.mark.parametrize("packing", [True, False])
def test_every_ratio_before_the_first_update_is_exactly_one(packing: bool) -> None:
    """Advantages of 0 move no weight, so that even the second of two updates is on-policy."""
    model = build_model(dtype=torch.float32)
    still = [replace(row, advantages=(0.0,) * len(row)) for row in shared(build_rows(model))]
    optim = OptimSettings(minibatches=2, packing=packing, micro_batch_tokens=30)
    goal = Objective(loss=PpoClip(), correction=Tis(), settings=ObjectiveSettings(), temperature=1.0)
    metrics = Learner(model, optim=optim, num_steps=1, device=CPU).train_step(still, goal, step=0)
    assert (metrics["ratio/min"], metrics["ratio/max"]) == (1.0, 1.0)


def test_a_group_is_computed_once_for_its_prompt() -> None:
    model = build_model()
    rows = shared(build_rows(model))
    learner = Learner(model, optim=OptimSettings(), num_steps=1, device=CPU)
    prefixes = {row.token_ids[:end] for row in rows for end in range(1, len(row) + 1)}
    assert [batch.num_tokens for batch in learner.micro_batches(rows, range(len(rows)))] == [len(prefixes)]
    assert len(prefixes) < sum(map(len, rows)) - 4 * 4


def test_later_updates_move_the_ratio() -> None:
    model = build_model(dtype=torch.float32)
    rows = build_rows(model)
    learner = Learner(model, optim=OptimSettings(lr=1e-2, epochs=2, minibatches=2), num_steps=1, device=CPU)
    metrics = learner.train_step(rows, objective(), step=0)
    assert metrics["optim/updates"] == 4
    assert metrics["ratio/min"] < 0.99 < 1.01 < metrics["ratio/max"]


def test_reference_of_the_kl_term_passes_over_the_packs_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = build_model(), build_model(7)
    rows, built, passes = shared(build_rows(model)), kept_packs(monkeypatch), list[int]()
    optim = OptimSettings(minibatches=2, epochs=2, micro_batch_tokens=20)
    assert can_pack(reference)
    reference.model.register_forward_hook(lambda *_: passes.append(1))
    packs: list[int] = []
    for opened, kl_coef in ((None, 0.0), (lambda: nullcontext(reference), 0.1)):
        built.clear()
        learner = Learner(model, optim=optim, num_steps=1, device=CPU, reference=opened)
        learner.train_step(rows, objective(kl_coef=kl_coef), step=0)
        packs.append(len(built))
    # One pass before the updates and two epochs of them; the reference passes before them alone.
    assert packs == [3 * len(passes)] * 2
    assert len(passes) > 2


def test_kl_to_a_reference_pulls_back() -> None:
    model, reference = build_model(0), build_model(7)
    rows = build_rows(model)
    flat = [replace(row, advantages=(0.0,) * len(row)) for row in rows]
    learner = Learner(
        model, optim=OptimSettings(lr=1e-2), num_steps=1, device=CPU, reference=lambda: nullcontext(reference)
    )
    goal = objective(kl_coef=1.0)
    first = learner.train_step(flat, goal, step=0)["loss/kl_reference"]
    for step in range(1, 30):
        last = learner.train_step(flat, goal, step=step)["loss/kl_reference"]
    assert 0 < last < 0.5 * first


def test_not_finite_loss_is_refused_before_the_weights_change() -> None:
    model = build_model()
    rows = build_rows(model)
    broken = replace(rows[0], advantages=(math.inf,) * len(rows[0]))
    before = copy.deepcopy(model.state_dict())
    learner = Learner(model, optim=OptimSettings(), num_steps=1, device=CPU)
    with pytest.raises(InvalidInput, match="loss must be finite"):
        learner.train_step([broken, *rows[1:]], objective(), step=0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_micro_batches_hold_every_row_once_and_respect_the_limit() -> None:
    rows = build_rows(build_model())
    batches = padded_batches(rows, range(len(rows)), 24, CPU)
    assert sorted(number for batch in batches for number in batch.rows) == list(range(len(rows)))
    assert all(batch.input_ids_BT.numel() <= 24 for batch in batches)
    assert [batch.input_ids_BT.shape for batch in batches] == [(2, 12), (2, 9), (2, 5)]


def test_denominator_counts_weights_and_rows() -> None:
    rows = build_rows(build_model(), lengths=(4, 5))
    # row 0 trains place 2 (place 3 is a multiple of 3) with weight .5; row 1 trains places 3 and 4 with weight 1
    denominator = objective().denominators(rows)["policy"]
    assert (denominator.tokens, denominator.sequences) == (2.5, 2)


def test_schedule_warms_up_and_decays() -> None:
    cosine = OptimSettings(warmup_steps=2, decay="cosine")
    assert [schedule(cosine, step, 10) for step in (0, 1, 2, 6, 10)] == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])
    linear = OptimSettings(decay="linear")
    assert [schedule(linear, step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_dropout_is_switched_off_everywhere() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=23, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.5,
    )  # fmt: skip
    model = without_dropout(LlamaForCausalLM(config)).train()
    ids = torch.arange(6)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)


IDS = torch.tensor([[5, 6, 7, 8, 9]])


def scored(model: nn.Module) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=torch.ones_like(IDS)).logprobs_BT


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_reference_scores_as_the_model_did(is_wide: bool, tmp_path: Path) -> None:
    model = llama().eval()
    if is_wide:
        widen_head(model)
    before = scored(model)
    keep_reference(model, tmp_path / "reference")
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    with open_reference(model, tmp_path / "reference", torch.device("cpu"))() as reference:
        assert torch.equal(scored(reference), before)
    assert not torch.equal(scored(model), before)
