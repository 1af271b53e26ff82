"""Weights in bfloat16 move as those in float32 do, at every learning rate; no bit of the float32 weight is lost."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from envgym.trainer.learner.memory import measure_memory, state_memory
from envgym.trainer.learner.optimizers import exact
from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.optimizers.exact import ExactAdamW, joined, split
from envgym.trainer.learner.ranks.optimizer_state import load_shards, save_shards
from envgym.trainer.learner.settings import LARGEST_BETA, OptimSettings
from tests.trainer.learner.optimizers.steady import (
    RATES,
    SIZE,
    STEPS,
    Weights,
    exact_values,
    moved,
    plain_adamw,
    trained,
)


@pytest.mark.parametrize("rate", RATES)
def test_distance_moved_is_that_of_float32(rate: float) -> None:
    start = [parameter.detach().float() for parameter in Weights(torch.float32).parameters()]
    wide, _ = trained(torch.float32, build_optimizer, rate)
    expected = moved([parameter.detach() for parameter in wide.parameters()], start)
    short, optimizer = trained(torch.bfloat16, build_optimizer, rate)
    values = exact_values(short, optimizer)
    for ours, theirs in zip(moved(values, start), expected, strict=True):
        assert 0.97 <= ours / theirs <= 1.03
    for parameter, value, target in zip(short.parameters(), values, wide.parameters(), strict=True):
        assert torch.equal(parameter, split(value)[0])
        assert (value - target).norm() <= 0.03 * (value - start[0 if value.ndim == 2 else 1]).norm()


@pytest.mark.parametrize("rate, at_most", [(1e-6, 0.15), (5e-6, 0.3), (1e-5, 0.4), (1e-4, 0.9)])
def test_plain_adamw_loses_most_of_it(rate: float, at_most: float) -> None:
    start = [parameter.detach().float() for parameter in Weights(torch.float32).parameters()]
    wide, _ = trained(torch.float32, build_optimizer, rate)
    short, _ = trained(torch.bfloat16, plain_adamw, rate)
    (ours, _), (theirs, _) = (moved([p.detach().float() for p in model.parameters()], start) for model in (short, wide))
    assert ours / theirs < at_most


def test_a_moment_at_the_largest_beta_follows_and_one_above_does_not() -> None:
    def second_moment(beta: float, dtype: torch.dtype) -> float:
        model = Weights(dtype)
        defaults = {"lr": 1e-5, "betas": (0.9, beta), "eps": 1e-8, "weight_decay": 0.0}
        optimizer = ExactAdamW(model.parameters(), defaults)
        for step in range(1200):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 4.0 if step < 200 else 1.0)
            optimizer.step()
        return float(optimizer.state[model.matrix]["exp_avg_sq"].float().mean())

    def ratio(beta: float) -> float:
        return second_moment(beta, torch.bfloat16) / second_moment(beta, torch.float32)

    assert ratio(LARGEST_BETA) == pytest.approx(1.0, abs=0.15)
    assert ratio(0.999) > 1.5


def test_split_numbers_join_to_the_same_bits() -> None:
    rng = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=rng, dtype=torch.int64).to(torch.int32)
    numbers = bits.view(torch.float32)
    numbers = numbers[numbers.abs() < 3e38]  # the largest ones round to infinity
    edge = torch.tensor([0.0, -0.0, 1.0, 1.00390625, -1.00390625, 1e-40, 3.3e38])
    for values in (numbers, edge):
        rounded, left_out = split(values)
        assert torch.equal(joined(rounded, left_out).view(torch.int32), values.view(torch.int32))
        gap = (rounded.float() - values).abs()
        assert (gap <= (values.bfloat16().float() - values).abs()).all()


def test_a_copied_state_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    model, optimizer = trained(torch.bfloat16, build_optimizer, 1e-6, weight_decay=0.1)
    ways = {"dict": copy.deepcopy(model), "shards": copy.deepcopy(model)}
    others = {name: build_optimizer(other, OptimSettings(lr=1e-6, weight_decay=0.1)) for name, other in ways.items()}
    others["dict"].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    save_shards(tmp_path / "shards", model, optimizer)
    load_shards(tmp_path / "shards", ways["shards"], others["shards"])
    for step in range(5):
        for pushed in (model, *ways.values()):
            pushed.push(step)
        for stepped in (optimizer, *others.values()):
            stepped.step()
    for name, other in ways.items():
        for ours, theirs in zip(exact_values(other, others[name]), exact_values(model, optimizer), strict=True):
            assert torch.equal(ours, theirs)


def test_a_checkpoint_of_plain_adamw_goes_on() -> None:
    model, before = trained(torch.bfloat16, plain_adamw, 1e-6)
    optimizer, start = build_optimizer(model, OptimSettings(lr=1e-6)), [p.detach().float() for p in model.parameters()]
    saved = before.state_dict()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
    model.push(0)
    optimizer.step()
    assert min(moved(exact_values(model, optimizer), start)) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_slices_are_updated_to_the_bits_of_the_whole(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"optimizer": {"name": name}, "weight_decay": 0.1}
    model, optimizer = trained(dtype, build_optimizer, 1e-4, **settings)
    monkeypatch.setattr(exact, "SLICE", 192)  # of 4096 and of 512 numbers: the last slice is shorter
    sliced, other = trained(dtype, build_optimizer, 1e-4, **settings)
    for ours, theirs in zip(sliced.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert other.state[ours].keys() == optimizer.state[theirs].keys()
        for kind, value in optimizer.state[theirs].items():
            assert torch.equal(bits_of(other.state[ours][kind]), bits_of(value)), kind


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.ndim else tensor  # left-out bits can look like NaN


def test_rows_of_a_gradient_that_is_not_contiguous_are_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    values = []
    for numbers in (exact.SLICE, 16):
        monkeypatch.setattr(exact, "SLICE", numbers)
        rng = torch.Generator().manual_seed(0)
        parameter = nn.Parameter(torch.randn((8, 8), generator=rng).bfloat16())
        parameter.grad = torch.randn((8, 8), generator=rng).bfloat16().t()
        optimizer = ExactAdamW([parameter], {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0})
        optimizer.step()
        values.append(joined(parameter.detach(), optimizer.state[parameter]["left_out_bits"]))
    assert torch.equal(*values)


def test_an_update_needs_no_more_memory_for_a_larger_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SLICE", 2**14)
    peaks = []
    for numbers in (2**14, 2**18):
        parameter = nn.Parameter(torch.ones((numbers // 64, 64), dtype=torch.bfloat16))
        optimizer = ExactAdamW([parameter], {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0})
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        with measure_memory(torch.device("cpu")) as use:
            optimizer.step()
        peaks.append(use.peak)
    assert peaks[1] <= peaks[0] + 1024 <= 24 * 2**14 + 2048


@pytest.fixture
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]  # is exported by another name
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_shards_are_updated_as_whole_parameters_are() -> None:
    plain, _ = trained(torch.bfloat16, build_optimizer, 1e-5)
    model = Weights(torch.bfloat16)
    mesh = init_device_mesh("cpu", (1,))
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh)))
    optimizer = build_optimizer(model, OptimSettings(lr=1e-5))
    for step in range(STEPS):
        source = Weights(torch.bfloat16)
        source.push(step)
        for ours, theirs in zip(model.parameters(), source.parameters(), strict=True):
            ours.grad = distribute_tensor(theirs.grad, mesh)  # type: ignore[arg-type]  # `push` sets it
        optimizer.step()
    for sharded, whole in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(sharded.full_tensor(), whole)  # type: ignore[attr-defined]  # of a DTensor


def test_it_is_built_for_bfloat16_alone_and_its_memory_is_stated() -> None:
    short, wide = Weights(torch.bfloat16), Weights(torch.float32)
    assert isinstance(build_optimizer(short, OptimSettings()), ExactAdamW)
    assert not isinstance(build_optimizer(wide, OptimSettings()), ExactAdamW)
    numbers = SIZE + SIZE // 8
    stated = state_memory(short, OptimSettings(), reference=False)
    assert (stated.weights, stated.gradients, stated.optimizer) == (2 * numbers, 2 * numbers, 6 * numbers)
    assert state_memory(wide, OptimSettings(), reference=False).optimizer == 8 * numbers
    _, optimizer = trained(torch.bfloat16, build_optimizer, 1e-5)
    held = sum(v.numel() * v.element_size() for state in optimizer.state.values() for v in state.values() if v.ndim)
    assert held == stated.optimizer
