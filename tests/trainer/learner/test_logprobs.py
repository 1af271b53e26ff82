"""Chunked log-probabilities equal the dense ones, in value and gradient, and never hold the logits of all tokens."""

from math import log
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from envgym.errors import InvalidInput
from envgym.trainer.learner.causal_lm import LmHead
from envgym.trainer.learner.logprobs import chunked_logprobs
from tests.support.logprobs import token_logprobs

HEADS = [{}, {"scale": 0.3}, {"softcap": 2.0}, {"scale": 1.7, "softcap": 1.5}]


class _Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor

    def leaves(self) -> "_Case":
        hidden, weight, bias = (value.clone().requires_grad_() for value in self[:3])
        return _Case(hidden, weight, bias, self.targets)

    def to(self, dtype: torch.dtype) -> "_Case":
        hidden, weight, bias = (value.to(dtype) for value in self[:3])
        return _Case(hidden, weight, bias, self.targets)

    def head(self, scale: float = 1.0, softcap: float | None = None) -> LmHead:
        return LmHead(weight_VD=self.weight, bias_V=self.bias, scale=scale, softcap=softcap)


def _case(seed: int = 0, tokens: int = 7, vocab: int = 11, width: int = 5, dtype: torch.dtype = torch.float64) -> _Case:
    generator = torch.Generator().manual_seed(seed)
    return _Case(
        hidden=torch.randn(tokens, width, dtype=dtype, generator=generator),
        weight=torch.randn(vocab, width, dtype=dtype, generator=generator),
        bias=torch.randn(vocab, dtype=dtype, generator=generator),
        targets=torch.randint(0, vocab, (tokens,), generator=generator),
    )


def _dense(case: _Case, scale: float, softcap: float | None, temperature: float) -> tuple[Tensor, Tensor]:
    logits = (case.hidden @ case.weight.T + case.bias) * scale
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logp = (logits / temperature).log_softmax(dim=-1)
    return logp[torch.arange(len(logp)), case.targets], -(logp.exp() * logp).sum(dim=-1)


def _gradients(case: _Case, outputs: tuple[Tensor, Tensor], weights: Tensor) -> list[Tensor]:
    (outputs[0] * weights[0] + outputs[1] * weights[1]).sum().backward()
    return [leaf.grad for leaf in case[:3] if leaf.grad is not None]


def test_a_hand_case() -> None:
    # Logits (0, ln 3): p = (1/4, 3/4). At temperature 1/2 they are (0, ln 9): p = (1/10, 9/10).
    hidden = torch.tensor([[1.0], [1.0]])
    head = LmHead(weight_VD=torch.tensor([[0.0], [log(3.0)]]))
    warm = chunked_logprobs(hidden, head, torch.tensor([0, 1]), with_entropy=True)
    assert warm.logprobs_T.tolist() == [pytest.approx(log(1 / 4)), pytest.approx(log(3 / 4))]
    assert warm.entropies_T is not None
    assert warm.entropies_T.tolist() == [pytest.approx(-log(1 / 4) / 4 - 3 * log(3 / 4) / 4)] * 2
    cold = chunked_logprobs(hidden, head, torch.tensor([0, 1]), temperature=0.5)
    assert cold.logprobs_T.tolist() == [pytest.approx(log(0.1)), pytest.approx(log(0.9))]
    assert cold.entropies_T is None


@pytest.mark.parametrize("settings", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@given(seed=st.integers(0, 10_000), chunk_size=st.integers(1, 9))
def test_values_and_gradients_equal_the_dense_ones(
    settings: dict[str, float], temperature: float, seed: int, chunk_size: int
) -> None:
    case = _case(seed)
    weights = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ours, theirs = case.leaves(), case.leaves()
    result = chunked_logprobs(
        ours.hidden,
        ours.head(**settings),
        ours.targets,
        temperature=temperature,
        with_entropy=True,
        chunk_size=chunk_size,
    )
    assert result.entropies_T is not None
    chunked = (result.logprobs_T, result.entropies_T)
    dense = _dense(theirs, settings.get("scale", 1.0), settings.get("softcap"), temperature)
    torch.testing.assert_close(chunked, dense, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        _gradients(ours, chunked, weights), _gradients(theirs, dense, weights), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("settings", HEADS)
def test_the_gradient_equals_finite_differences(settings: dict[str, float]) -> None:
    case = _case(3, tokens=4, vocab=6, width=3)

    def both(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        head = _Case(hidden, weight, bias, case.targets).head(**settings)
        result = chunked_logprobs(hidden, head, case.targets, temperature=0.8, with_entropy=True, chunk_size=3)
        assert result.entropies_T is not None
        return result.logprobs_T, result.entropies_T

    assert torch.autograd.gradcheck(both, case.leaves()[:3])


def test_an_entropy_that_no_loss_uses_adds_no_gradient() -> None:
    with_it, without = _case().leaves(), _case().leaves()
    chunked_logprobs(with_it.hidden, with_it.head(), with_it.targets, with_entropy=True).logprobs_T.sum().backward()
    chunked_logprobs(without.hidden, without.head(), without.targets).logprobs_T.sum().backward()
    assert with_it.hidden.grad is not None
    assert without.hidden.grad is not None
    assert torch.equal(with_it.hidden.grad, without.hidden.grad)


def test_the_entropy_alone_has_its_gradient() -> None:
    ours, theirs = _case().leaves(), _case().leaves()
    entropies = chunked_logprobs(ours.hidden, ours.head(), ours.targets, with_entropy=True).entropies_T
    assert entropies is not None
    entropies.sum().backward()
    _dense(theirs, 1.0, None, 1.0)[1].sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_only_what_is_trained_gets_a_gradient() -> None:
    case = _case()
    weight = case.weight.clone().requires_grad_()
    chunked_logprobs(case.hidden, LmHead(weight_VD=weight), case.targets).logprobs_T.sum().backward()
    hidden = case.hidden.clone().requires_grad_()
    chunked_logprobs(hidden, LmHead(weight_VD=case.weight), case.targets).logprobs_T.sum().backward()
    assert weight.grad is not None
    assert hidden.grad is not None
    assert case.weight.grad is None


def test_no_tokens_give_empty_outputs_and_zero_gradients() -> None:
    case = _case(tokens=0).leaves()
    result = chunked_logprobs(case.hidden, case.head(), case.targets, with_entropy=True)
    assert result.entropies_T is not None
    (result.logprobs_T.sum() + result.entropies_T.sum()).backward()
    assert case.weight.grad is not None
    assert torch.equal(case.weight.grad, torch.zeros_like(case.weight))


def test_bf16_inputs_are_reduced_in_float32() -> None:
    case = _case(tokens=64, vocab=300, width=16, dtype=torch.bfloat16)
    ours, exact = case.leaves(), case.to(torch.float32).leaves()
    logprobs = chunked_logprobs(ours.hidden, ours.head(), ours.targets, chunk_size=8).logprobs_T
    logprobs.sum().backward()
    assert logprobs.dtype is torch.float32
    logits = torch.nn.functional.linear(case.hidden, case.weight, case.bias).float()  # bf16 product, float32 after
    expected = logits.log_softmax(dim=-1).gather(-1, case.targets[:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=1e-5)
    _dense(exact, 1.0, None, 1.0)[0].sum().backward()
    assert ours.weight.grad is not None
    assert exact.weight.grad is not None
    assert ours.weight.grad.dtype is torch.bfloat16
    error = (ours.weight.grad.float() - exact.weight.grad).norm() / exact.weight.grad.norm()
    assert error.item() < 0.02  # bf16 keeps 8 bits, 0.4 %, of each logit and each gradient


def test_autocast_runs_the_product_in_its_dtype() -> None:
    case = _case(dtype=torch.float32).leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs = chunked_logprobs(case.hidden, case.head(), case.targets).logprobs_T
    low = chunked_logprobs(
        case.hidden.bfloat16(),
        LmHead(weight_VD=case.weight.bfloat16(), bias_V=case.bias.bfloat16()),
        case.targets,
    ).logprobs_T
    assert torch.equal(logprobs, low)
    logprobs.sum().backward()
    assert case.weight.grad is not None
    assert case.weight.grad.dtype is torch.float32


def test_a_backward_pass_inside_autocast_stays_in_the_dtype_of_the_forward_pass() -> None:
    plain, cast = _case(dtype=torch.float32).leaves(), _case(dtype=torch.float32).leaves()
    chunked_logprobs(plain.hidden, plain.head(), plain.targets).logprobs_T.sum().backward()
    loss = chunked_logprobs(cast.hidden, cast.head(), cast.targets).logprobs_T.sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss.backward()
    assert cast.weight.grad is not None
    assert plain.weight.grad is not None
    assert torch.equal(cast.weight.grad, plain.weight.grad)


class _LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no annotations
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # as torch calls it
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return output


@pytest.mark.parametrize("with_entropy", [False, True])
def test_no_tensor_exceeds_a_chunk_of_logits_in_either_pass(with_entropy: bool) -> None:
    case = _case(tokens=64, vocab=50, width=3).leaves()
    with _LargestTensor() as largest:
        result = chunked_logprobs(
            case.hidden, case.head(softcap=3.0), case.targets, with_entropy=with_entropy, chunk_size=4
        )
        loss = result.logprobs_T.sum() + (result.entropies_T.sum() if result.entropies_T is not None else 0.0)
        loss.backward()
    assert largest.num_elements == 4 * 50  # and not 64 * 50


def test_arguments_out_of_range_are_refused_with_a_sentence() -> None:
    case = _case()
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="temperature must be above 0"):
            chunked_logprobs(case.hidden, case.head(), case.targets, temperature=temperature)
    with pytest.raises(InvalidInput, match="chunk_size must be at least 1, got 0"):
        chunked_logprobs(case.hidden, case.head(), case.targets, chunk_size=0)


VOCAB = 17
IDS = torch.tensor([[3, 5, 8, 1, 9], [4, 2, 7, 0, 0]])
ATTENTION = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).double()


def _model_gradients(model: LlamaForCausalLM, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def test_rows_equal_the_model_s_own_logits_in_value_and_gradient(model: LlamaForCausalLM) -> None:
    weights = torch.randn(2, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = token_logprobs(
        model, input_ids_BT=IDS, attention_mask_BT=ATTENTION, temperature=0.9, with_entropy=True, chunk_size=3
    )
    assert result.entropies_BT is not None
    logp = (model(input_ids=IDS, attention_mask=ATTENTION).logits / 0.9).log_softmax(dim=-1)[:, :-1]
    present = ATTENTION[:, 1:].bool()
    expected = logp.gather(-1, IDS[:, 1:, None]).squeeze(-1).where(present, 0.0)
    entropies = -(logp.exp() * logp).sum(dim=-1).where(present, 0.0)
    torch.testing.assert_close(result.logprobs_BT[:, 1:], expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(result.entropies_BT[:, 1:], entropies, rtol=1e-6, atol=1e-8)
    assert result.logprobs_BT[:, 0].tolist() == [0.0, 0.0]
    ours = _model_gradients(model, (result.logprobs_BT * weights[0] + result.entropies_BT * weights[1]).sum())
    dense = _model_gradients(model, (expected * weights[0, :, 1:] + entropies * weights[1, :, 1:]).sum())
    torch.testing.assert_close(ours, dense, rtol=1e-6, atol=1e-8)


def test_tokens_outside_the_loss_mask_are_zero_and_the_others_unchanged(model: LlamaForCausalLM) -> None:
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0]]).bool()
    everything = token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=ATTENTION).logprobs_BT
    some = token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=ATTENTION, loss_mask_BT=mask).logprobs_BT
    mask[:, 0] = False  # the first token of a row follows nothing
    torch.testing.assert_close(some, everything.where(mask, 0.0))


def test_padding_changes_no_token(model: LlamaForCausalLM) -> None:
    alone = token_logprobs(model, input_ids_BT=IDS[1:, :3], attention_mask_BT=ATTENTION[1:, :3]).logprobs_BT
    padded = token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=ATTENTION).logprobs_BT[1:]
    torch.testing.assert_close(padded, torch.nn.functional.pad(alone, (0, 2)), rtol=1e-6, atol=1e-8)


def test_a_batch_without_scored_tokens_is_zero_and_connected(model: LlamaForCausalLM) -> None:
    nothing = torch.zeros(2, 5).bool()
    logprobs = token_logprobs(model, input_ids_BT=IDS, attention_mask_BT=ATTENTION, loss_mask_BT=nothing).logprobs_BT
    gradients = _model_gradients(model, logprobs.sum())
    assert torch.equal(logprobs, torch.zeros(2, 5, dtype=torch.float64))
    assert all(bool((gradient == 0).all()) for gradient in gradients.values())
