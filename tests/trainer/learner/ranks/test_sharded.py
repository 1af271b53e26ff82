"""Learner ranks: one train step at 1, 2 and 3 ranks is that of one process."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.learner.ranks.cases import CASES, COMPILING, cases_of, run_case

# Starting several programs is slow where cores are few.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("ranks"),
    pytest.mark.timeout(600),
    *(pytest.mark.filterwarnings(f"ignore:{message}") for message in COMPILING),
]


def start_ranks(num_ranks: int, *words: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(num_ranks)
    ]


def finish(ranks: list[subprocess.Popen[str]], *, timeout_s: float = 540.0) -> list[str]:
    """Wait for ranks, and return what each has written; none outlives this."""
    try:
        return [rank.communicate(timeout=timeout_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    out = tmp_path_factory.mktemp("ranks") / "found.pt"
    ranks = start_ranks(request.param, "-m", "tests.trainer.learner.ranks.cases", str(out))
    told = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0] * request.param, "\n".join(told)
    found: Mapping[str, Any] = torch.load(Path(out), weights_only=False)
    return {**found, "num_ranks": request.param}


@pytest.fixture(scope="module")
def alone() -> Mapping[str, Any]:
    cases = {**CASES, "traced": cases_of(1)["compiled"]}
    return {name: run_case(case, None) for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_train_step_is_that_of_one_process(name: str, ranked: Mapping[str, Any], alone: Mapping[str, Any]) -> None:
    bound = 1e-6 if CASES[name].dtype is torch.float32 else 1e-12
    of_metrics, of_logprobs = 1e-5, 10 * bound
    if CASES[name].autocast is not None:  # other packs are rounded otherwise in the backward pass; the first is exact
        bound, of_metrics, of_logprobs = 1e-4, 1e-3, 0.05
    is_traced = name == "compiled" and cases_of(ranked["num_ranks"])[name].traced
    found, expected = ranked[name], alone["traced" if is_traced else name]
    assert found["metrics"].keys() == expected["metrics"].keys()
    for key, value in expected["metrics"].items():
        assert found["metrics"][key] == pytest.approx(value, rel=of_metrics, abs=1e-6), key
    for part in ("gradients", "weights"):
        assert found[part].keys() == expected[part].keys()
        for key, tensor in expected[part].items():
            assert _gap(found[part][key], tensor) <= bound, (part, key)
    assert _gap(found["logprobs"], expected["logprobs"]) <= of_logprobs
    for key, tensor in expected["record"].items():
        assert _gap(found["record"][key], tensor) <= 1e-5, key


def test_weights_are_scattered_and_gathered_bit_by_bit(ranked: Mapping[str, Any]) -> None:
    assert ranked["there and back"] == 0.0


def test_a_forward_pass_leaves_the_base_that_is_sent_as_it_is(ranked: Mapping[str, Any]) -> None:
    before, after = ranked["base states"]
    assert before == after


def _gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()
