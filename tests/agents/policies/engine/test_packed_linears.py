"""Products from copied weights: the same bits, never of old weights, and nothing left behind."""

import pytest
import torch
from torch import Tensor, nn

from envgym.agents.policies.engine.packed_linears import PackedLinears, can_pack

needs_kernels = pytest.mark.skipif(
    not can_pack(torch.zeros(1, dtype=torch.bfloat16)), reason="this CPU's kernels do not know bfloat16"
)


def model(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96, bias=False), nn.Linear(96, 48), nn.LayerNorm(48)).to(dtype)


def served(packed: PackedLinears, module: nn.Module, states: Tensor) -> Tensor:
    with torch.inference_mode(), packed.serving():
        found: Tensor = module(states)
    return found


def replaced(module: nn.Module) -> bool:
    """Return whether a layer multiplies by a copy now."""
    return any("forward" in layer.__dict__ for layer in module.modules())


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 64), (8, 1, 64), (3, 40, 64)])
def test_products_are_the_same_bit_by_bit(shape: tuple[int, ...]) -> None:
    module, states = model(), torch.randn(shape).bfloat16()
    assert torch.equal(served(PackedLinears(module), module, states), module(states))


@needs_kernels
def test_the_copies_stay_until_they_are_dropped() -> None:
    module, states = model(), torch.randn(2, 64).bfloat16()
    packed = PackedLinears(module)
    old = served(packed, module, states)
    with torch.no_grad():
        next(module.parameters()).neg_()
    assert torch.equal(served(packed, module, states), old)
    packed.forget()
    new = served(packed, module, states)
    assert torch.equal(new, module(states))
    assert not torch.equal(new, old)


@needs_kernels
def test_a_layer_is_itself_again_after_serving_even_after_an_error() -> None:
    module = model()
    packed = PackedLinears(module)
    with packed.serving():
        packed.forget()
        assert replaced(module)
    assert not replaced(module)
    with pytest.raises(RuntimeError, match="descriptor"):  # a state of the wrong width
        served(packed, module, torch.randn(2, 63).bfloat16())
    assert not replaced(module)
    module(torch.randn(2, 64).bfloat16()).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_other_types_are_left_alone() -> None:
    module = model(torch.float32)
    with PackedLinears(module).serving():
        assert not replaced(module)
