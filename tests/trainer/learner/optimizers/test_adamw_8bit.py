"""8-bit AdamW: what codes stand for, how much they lose, and that updates are those of AdamW."""

import pytest
import torch

from envgym.trainer.learner.optimizers.adamw_8bit import BLOCK, ExactAdamW8bit
from envgym.trainer.learner.optimizers.base import build_optimizer
from envgym.trainer.learner.optimizers.exact import ExactAdamW
from tests.trainer.learner.optimizers.steady import RATES, Weights, exact_values, moved, trained

DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}


def stored(moment: torch.Tensor) -> torch.Tensor:
    """Return the magnitudes of a moment that was written and read, by codes with a sign and by those without."""
    parameter = torch.nn.Parameter(torch.zeros_like(moment))
    optimizer = ExactAdamW8bit([parameter], DEFAULTS)
    state = optimizer.new_state(parameter, {})
    optimizer.write({"exp_avg": moment.clone(), "exp_avg_sq": moment.abs()}, state)
    read = optimizer.read(state, torch.float32)
    assert torch.equal(read["exp_avg"].sign(), moment.sign() * (read["exp_avg"] != 0))
    return torch.stack((read["exp_avg"].abs(), read["exp_avg_sq"]))


def test_the_largest_number_of_a_block_and_zero_are_exact() -> None:
    moment = torch.zeros(4096)
    moment[::BLOCK] = torch.arange(1.0, 17.0) * 1e-9
    assert torch.equal(stored(moment), torch.stack((moment, moment)))


@pytest.mark.parametrize("decade, signed, unsigned", [(0, 1 / 64, 1 / 128), (3, 1 / 8, 1 / 16), (6, 1.0, 1 / 2)])
def test_a_number_of_a_decade_is_rounded_by_half_a_code_at_most(decade: int, signed: float, unsigned: float) -> None:
    # The decade below the largest number of a block has 64 codes with a sign and 128 without, each further one half.
    rng = torch.Generator().manual_seed(0)
    moment = (0.1 + 0.9 * torch.rand(4096, generator=rng)) * 10.0**-decade
    moment[::BLOCK] = 1.0
    gaps = (stored(moment) - moment).abs().amax(1) / 10.0**-decade
    for gap, codes in zip(gaps.tolist(), (signed, unsigned), strict=True):
        assert 0.3 * codes <= gap <= 0.46 * codes + 1e-6  # a code is 0.9 / number wide; at the ends of the decade less


@pytest.mark.parametrize("rate", RATES)
def test_weights_move_as_by_adamw(rate: float) -> None:
    start = [parameter.detach() for parameter in Weights(torch.float32).parameters()]
    values = {
        name: exact_values(*trained(torch.float32, build_optimizer, rate, optimizer={"name": name}, betas=(0.9, 0.999)))
        for name in ("adamw", "adamw_8bit")
    }
    ours, theirs = (moved(values[name], start) for name in ("adamw_8bit", "adamw"))
    assert ours == pytest.approx(theirs, rel=0.01)
    apart = moved(values["adamw_8bit"], values["adamw"])
    assert 0 < apart[0] < 0.05 * theirs[0]  # the matrix has codes
    assert apart[1] < 1e-3 * theirs[1]  # the vector has not: fused or not


def test_a_tensor_without_whole_blocks_is_updated_as_by_adamw() -> None:
    rng = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(4097, generator=rng), torch.randn(3, 4097, generator=rng)
    values = []
    for kind in (ExactAdamW, ExactAdamW8bit):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = kind([{"params": [parameter], "weight_decay": 0.1}], DEFAULTS)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        values.append(parameter.detach())
    assert torch.equal(*values)


def test_slices_do_not_change_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def values() -> torch.Tensor:
        model, _ = trained(torch.bfloat16, build_optimizer, 1e-4, optimizer={"name": "adamw_8bit"})
        return model.matrix.detach()

    whole = values()
    monkeypatch.setattr("envgym.trainer.learner.optimizers.exact.SLICE", 2 * BLOCK)
    assert torch.equal(values(), whole)


@pytest.mark.parametrize("beta", [0.95, 0.999])
@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-6])
def test_no_weight_moves_further_than_by_adamw_however_small_its_gradient_is(share: float, beta: float) -> None:
    distances = []
    for kind in (ExactAdamW, ExactAdamW8bit):
        parameter = torch.nn.Parameter(torch.zeros(4096))
        group = {"params": [parameter], "weight_decay": 0.0}
        optimizer = kind([group], {"lr": 1.0, "betas": (0.9, beta), "eps": 1e-30})
        for _ in range(100):
            parameter.grad = torch.full((4096,), share)
            parameter.grad[::BLOCK] = 1.0
            optimizer.step()
        distances.append(parameter.detach().abs())
    assert distances[0].max().item() == pytest.approx(100, rel=1e-3)
    assert (distances[1] <= 1.1 * distances[0]).all()


def test_a_gradient_whose_memory_is_not_contiguous_gives_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.trainer.learner.optimizers.exact.SLICE", 2**10)
    gradient = torch.randn((96, 64), generator=torch.Generator().manual_seed(0)).T
    values = []
    for given in (gradient, gradient.contiguous()):
        parameter = torch.nn.Parameter(torch.zeros(64, 96))
        optimizer = ExactAdamW8bit([{"params": [parameter], "weight_decay": 0.0}], DEFAULTS)
        parameter.grad = given
        optimizer.step()
        values.append(parameter.detach())
    assert torch.equal(*values)
