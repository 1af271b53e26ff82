"""Every optimizer moves weights in bfloat16 as those in float32, resumes bit by bit, and states its memory."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.learner.memory import state_memory
from envgym.trainer.learner.optimizers.adamw import AdamW
from envgym.trainer.learner.optimizers.base import OPTIMIZER, build_optimizer, check_optimizer
from envgym.trainer.learner.optimizers.exact import split
from envgym.trainer.learner.ranks.optimizer_state import load_shards, save_shards
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.method import build_method
from envgym.trainer.settings import train_settings
from tests.trainer.learner.optimizers.steady import RATES, SIZE, Weights, exact_values, moved, trained

NAMES = sorted(OPTIMIZER.table)
SHORT, WIDE = torch.bfloat16, torch.float32


def optim_of(name: str, **settings: object) -> OptimSettings:
    return OptimSettings.model_validate({"optimizer": {"name": name}, **settings})


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", NAMES)
def test_weights_in_bfloat16_move_as_far_as_those_in_float32(name: str, rate: float) -> None:
    start = [parameter.detach().float() for parameter in Weights(WIDE).parameters()]
    distances = {}
    for dtype in (SHORT, WIDE):
        model, optimizer = trained(dtype, build_optimizer, rate, optimizer={"name": name})
        values = exact_values(model, optimizer)
        distances[dtype] = moved(values, start)
        if dtype is SHORT:
            for parameter, value in zip(model.parameters(), values, strict=True):
                assert torch.equal(parameter, split(value)[0])
    for ours, theirs in zip(distances[SHORT], distances[WIDE], strict=True):
        assert theirs > 0
        assert 0.95 <= ours / theirs <= 1.05


@pytest.mark.parametrize("dtype", [SHORT, WIDE], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_continues_with_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    settings = {"optimizer": {"name": name}, "weight_decay": 0.1}
    model, optimizer = trained(dtype, build_optimizer, 1e-6, **settings)
    optim = OptimSettings.model_validate({"lr": 1e-6, **settings})
    models = {"whole": copy.deepcopy(model), "shards": copy.deepcopy(model)}
    optimizers = {way: build_optimizer(of_way, optim) for way, of_way in models.items()}
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    optimizers["whole"].load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    if OPTIMIZER.build(optim.optimizer).trains_shards:
        save_shards(tmp_path / "shards", model, optimizer)
        load_shards(tmp_path / "shards", models["shards"], optimizers["shards"])
    else:
        del models["shards"]
    for step in range(3):
        for pushed in (model, *models.values()):
            pushed.push(step)
        for stepped in (optimizer, *(optimizers[way] for way in models)):
            stepped.step()
    expected = exact_values(model, optimizer)
    for way, of_way in models.items():
        for ours, theirs in zip(exact_values(of_way, optimizers[way]), expected, strict=True):
            assert torch.equal(ours, theirs), way


@pytest.mark.parametrize(
    "name, dtype, per_weight",
    [
        ("adamw", WIDE, 8),
        ("adamw", SHORT, 6),
        ("adamw_8bit", WIDE, 2 + 2 / 64),
        ("adamw_8bit", SHORT, 4 + 2 / 64),
        ("muon", WIDE, 4),
        ("muon", SHORT, 4),
        ("adafactor", WIDE, 0),
    ],
)
def test_the_stated_memory_is_what_the_optimizer_holds(name: str, dtype: torch.dtype, per_weight: float) -> None:
    model, optimizer = trained(dtype, build_optimizer, 1e-5, optimizer={"name": name})
    stated = state_memory(model, optim_of(name), reference=False).optimizer
    held = sum(v.numel() * v.element_size() for state in optimizer.state.values() for v in state.values() if v.ndim)
    assert held == stated
    vector = (4 if name == "adafactor" else 8 if dtype is WIDE else 6) * (SIZE // 8)
    factors = 4 * (2 + SIZE // 2) if name == "adafactor" else 0
    assert held == per_weight * SIZE + vector + factors


class Plain(AdamW):
    """AdamW that rounds its updates to the type of the weights, on whole weights only."""

    trains_bfloat16 = False
    trains_shards = False

    def __call__(self, model: nn.Module, optim: OptimSettings) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=optim.lr)


@pytest.mark.parametrize(
    "optim, model, launch, message",
    [
        (
            {"optimizer": f"{__file__}:Plain"},
            {"precision": "bfloat16"},
            {},
            r"optim\.optimizer must lose no update of weights in bfloat16 to rounding.*set model\.precision=mixed",
        ),
        (
            {"betas": [0.9, 0.999]},
            {"precision": "bfloat16"},
            {},
            r"optim\.betas must be at most 0\.97 .* got 0\.999 .*model\.precision=mixed",
        ),
        (
            {"optimizer": {"name": "muon", "momentum": 0.99}},
            {"precision": "bfloat16"},
            {},
            r"decay rates of optim\.optimizer must be at most 0\.97 .* got 0\.99 ",
        ),
        (
            {"optimizer": "adafactor"},
            {},
            {"learners": 2},
            r"optim\.optimizer must train shards of weights.*got adafactor.*set launch\.learners=1",
        ),
    ],
)
def test_what_cannot_learn_is_refused_before_anything_is_loaded(
    optim: dict[str, Any], model: dict[str, Any], launch: dict[str, Any], message: str
) -> None:
    data = {"optim": optim, "model": model, "launch": launch, "envs": [{"id": "math/arithmetic-v0"}]}
    with pytest.raises(SettingsError, match=message):
        build_method(train_settings(data))
    if model:
        build_method(train_settings({**data, "model": {"precision": "mixed"}}))
        build_method(train_settings({**data, "model": {**model, "lora": {}}}))  # adapters are in float32


def test_ranks_of_torchrun_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    optim = {"optimizer": "adafactor", "lr": 5e-4}
    settings = train_settings({"optim": optim, "envs": [{"id": "math/arithmetic-v0"}]})
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    build_method(settings)  # one process is no rank
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match=r"optim\.optimizer must train shards .*got adafactor.*without torchrun"):
        build_method(settings)


@pytest.mark.parametrize("sections, name, rate", [({}, "optim", 1e-5), ({"sft": {"lr": 1e-5}}, "sft", 1e-5)])
def test_a_rate_of_adamw_is_refused_where_rates_are_relative(sections: dict[str, Any], name: str, rate: float) -> None:
    data = {"optim": {"optimizer": "adafactor"}, "envs": [{"id": "math/arithmetic-v0"}], **sections}
    if name != "optim":
        data["optim"] = {"optimizer": "adafactor", "lr": 5e-4}
    message = rf"{name}\.lr must be at least 2e-05 with adafactor, .* got {rate} .*5e-4"
    with pytest.raises(SettingsError, match=message):
        build_method(train_settings(data))
    build_method(train_settings(data), warns=False)  # a run that continues was checked when it started
    data["optim"] = {"optimizer": "adafactor", "lr": 5e-4}
    build_method(train_settings({**data, "sft": {"lr": 5e-4}}))
    build_method(train_settings({"envs": data["envs"], "optim": {"lr": 1e-7}}))


@pytest.mark.parametrize("precision", ["float16", "float64", "bf16"])
def test_other_precisions_are_refused(precision: str) -> None:
    with pytest.raises(SettingsError, match=r"model\.precision must be 'auto', 'float32', 'mixed' or 'bfloat16', got"):
        train_settings({"model": {"precision": precision}, "envs": [{"id": "math/arithmetic-v0"}]})


def test_no_optimizer_is_built_for_weights_that_it_cannot_train() -> None:
    with pytest.raises(InvalidInput, match=r"betas must be at most 0\.97 for weights in bfloat16, .* got 0\.999"):
        build_optimizer(Weights(SHORT), OptimSettings(betas=(0.9, 0.999)))
    check_optimizer(optim_of("adafactor", betas=(0.9, 0.999)), is_bfloat16=True, is_sharded=False)  # it has no betas
    assert type(build_optimizer(Weights(WIDE), OptimSettings())) is torch.optim.AdamW
