"""Compiled layers: the numbers of plain ones, to rounding, and exactly the same with and without gradient."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from envgym.errors import InvalidInput
from envgym.trainer.learner.causal_lm import causal_lm
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.train import train
from tests.support.tiny_runs import step_metrics, tiny_settings
from tests.trainer.learner.ranks.cases import CASES, COMPILING, CPU, Case, model_of, rows_of, run_case

pytestmark = [pytest.mark.filterwarnings(f"ignore:{message}") for message in COMPILING]
ONE_LAYER = {"num_hidden_layers": 1}
"""Each layer is compiled on its own, so that one tells what several would, in less time."""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (Debian: apt install g++)")


def learner_of(model: torch.nn.Module, **optim: object) -> Learner:
    settings = OptimSettings.model_validate({"compile_layers": True, **optim})
    return Learner(model, optim=settings, num_steps=4, device=CPU)


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> None:
    """Begin without other tests' layers: beyond a number of variants torch compiles no more."""
    torch.compiler.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and differentiate layers as ever, and run what comes of it without writing machine code: in a tenth."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name, model", [("padded", {}), ("lora", ONE_LAYER), ("recomputed", ONE_LAYER)])
def test_train_step_of_traced_layers_is_that_of_plain_ones(name: str, model: dict[str, int]) -> None:
    assert_same_step(replace(CASES[name], model=model))


@needs_compiler
def test_train_step_of_compiled_layers_is_that_of_plain_ones() -> None:
    assert_same_step(Case())  # several layers, which share the code


def assert_same_step(case: Case) -> None:
    bound = 1e-11
    found, expected = run_case(replace(case, optim={**case.optim, "compile_layers": True}), None), run_case(case, None)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5, abs=1e-6)
    for part in ("gradients", "weights", "record"):
        assert found[part].keys() == expected[part].keys()
        for key, tensor in expected[part].items():
            assert (found[part][key] - tensor).abs().max().item() <= bound, (part, key)
    assert (found["logprobs"] - expected["logprobs"]).abs().max().item() <= 10 * bound


@needs_compiler
def test_ratio_of_a_step_begins_at_exactly_one() -> None:
    case = Case(dtype=torch.bfloat16, model=ONE_LAYER)
    learner, rows = learner_of(model_of(case)), rows_of(case)
    batches = learner.micro_batches(rows, range(len(rows)))
    without = learner.compute_logprobs(rows, 1.0, batches)
    with learner.forward.mode():
        states = [learner.forward.hidden_states(batch) for batch in batches]
        found = torch.zeros_like(without)
        for batch, state in zip(batches, states, strict=True):
            assert state.hidden_SD.requires_grad
            found[batch.row_slice] += state.logprobs().logprobs_BT.detach()
    assert torch.equal(found, without)


@pytest.mark.usefixtures("traced")
def test_rows_of_other_lengths_are_not_compiled_again() -> None:
    case = Case(model=ONE_LAYER)
    learner, rows = learner_of(model_of(case)), rows_of(case)
    whole = learner.compute_logprobs(rows, 1.0)
    learner.compute_logprobs(rows[:1], 1.0)
    with torch.compiler.set_stance("fail_on_recompile"):
        for count in range(2, len(rows)):
            found = learner.compute_logprobs(rows[:count], 1.0)
            assert (found - whole[:count, : found.shape[1]]).abs().max().item() <= 1e-11


@pytest.mark.usefixtures("traced")
def test_model_has_its_own_layers_outside_of_training_and_so_has_its_copy() -> None:
    model = model_of(Case())
    learner, layers = learner_of(model), causal_lm(model).get_decoder().layers
    with learner.forward.layers():
        with learner.forward.mode():
            assert all("forward" in vars(layer) for layer in layers)
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in causal_lm(copy.deepcopy(model)).get_decoder().layers)


def test_run_trains_by_compiled_and_estimates_memory_by_plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    train(tiny_settings(tmp_path / "plain"))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    train(tiny_settings(tmp_path / "compiled", optim={"compile_layers": True}))
    assert graphs
    for found, expected in zip(step_metrics(tmp_path / "compiled"), step_metrics(tmp_path / "plain"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_no_compiler_is_told_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InvalidInput, match="C\\+\\+ compiler must be installed, got no-such-compiler"):
        learner_of(model_of(Case()))
