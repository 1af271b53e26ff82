"""Checkpoints of several ranks: saved at two, they go on at one and three, and the other way round."""

import io
import pickle
from pathlib import Path

import pytest
import torch

from envgym.errors import RunError
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.ranks.optimizer_state import read_index
from tests.trainer.learner.ranks.cases import CPU, model_of
from tests.trainer.learner.ranks.resumed import CASE, SETTINGS, critic_of, first_half, load, second_half
from tests.trainer.learner.ranks.test_sharded import finish, start_ranks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Weights = list[torch.Tensor]


def run_ranks(num_ranks: int, what: str, folder: Path) -> Weights:
    """Save or load a learner at a number of ranks; return the weights that it ends with."""
    out = folder / f"{what}-{num_ranks}.pt"
    ranks = start_ranks(num_ranks, "-m", "tests.trainer.learner.ranks.resumed", what, str(folder), str(out))
    told = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, "\n".join(told)
    weights: Weights = torch.load(out, weights_only=True)
    return weights


def one_process() -> tuple[Learner, torch.nn.Module]:
    """Return a learner, and its model."""
    model = model_of(CASE, seed=5)
    return Learner(model, optim=SETTINGS, num_steps=4, device=CPU, critic=critic_of(model)), model


def gap(one: Weights, other: Weights) -> float:
    """Return the largest difference."""
    return max((left - right).abs().max().item() for left, right in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    """Return what two ranks saved, and the weights with which they went on."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(2, "save", folder)


def test_one_process_goes_on_with_what_two_ranks_saved(saved: tuple[Path, Weights]) -> None:
    folder, expected = saved
    learner, model = one_process()
    load(learner, model, folder)
    assert gap(second_half(learner, model), expected) <= 1e-12


def test_three_ranks_go_on_with_what_two_ranks_saved(saved: tuple[Path, Weights]) -> None:
    folder, expected = saved
    assert gap(run_ranks(3, "load", folder), expected) <= 1e-12


def test_two_ranks_go_on_with_what_one_process_saved(tmp_path: Path) -> None:
    learner, model = one_process()
    expected = first_half(learner, model, tmp_path)
    assert gap(run_ranks(2, "load", tmp_path), expected) <= 1e-12


def test_state_of_another_model_is_refused(saved: tuple[Path, Weights]) -> None:
    model = torch.nn.Linear(3, 3)
    other = Learner.__new__(Learner)
    other.model, other.optimizer, other.critic = model, torch.optim.AdamW(model.parameters()), None
    with pytest.raises(RunError, match=r"optimizer must fit the model beside it, got .* of shape"):
        other.load(saved[0])


class Harmful:
    """Runs a program where it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Name the program."""
        return print, ("read",)


def test_index_that_is_another_pickle_is_refused_unread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins.print is not part of an index"):
        read_index(tmp_path)
    assert not capsys.readouterr().out
    buffer = io.BytesIO()
    pickle.dump([1], buffer)
    (tmp_path / ".metadata").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="a list"):
        read_index(tmp_path)
