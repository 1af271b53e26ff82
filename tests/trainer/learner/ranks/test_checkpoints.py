"""Checkpoints of several ranks: saved at three, they go on at one and two, and the other way round."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from envgym.agents.models.export import copy_model, indexed_files
from envgym.errors import RunError
from envgym.trainer.learner.checkpoint import SHARDS
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.ranks.optimizer_state import read_index, save_shards
from tests.trainer.learner.ranks.cases import CPU, model_of
from tests.trainer.learner.ranks.resumed import CASE, FILE_BYTES, SETTINGS, critic_of, first_half, load, second_half
from tests.trainer.learner.ranks.test_sharded import finish, start_ranks

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("saved ranks"), pytest.mark.timeout(600)]

Weights = list[torch.Tensor]


def run_ranks(num_ranks: int, what: str, folder: Path) -> Weights:
    out = folder / f"{what}-{num_ranks}.pt"
    ranks = start_ranks(num_ranks, "-m", "tests.trainer.learner.ranks.resumed", what, str(folder), str(out))
    told = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, "\n".join(told)
    weights: Weights = torch.load(out, weights_only=True)
    return weights


def one_process() -> tuple[Learner, torch.nn.Module]:
    model = model_of(CASE, seed=5)
    return Learner(model, optim=SETTINGS, num_steps=4, device=CPU, critic=critic_of(model)), model


def gap(one: Weights, other: Weights) -> float:
    return max((left - right).abs().max().item() for left, right in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Weights]:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(3, "save", folder)


def test_one_process_goes_on_with_what_three_ranks_saved(saved: tuple[Path, Weights]) -> None:
    folder, expected = saved
    learner, model = one_process()
    load(learner, model, folder)
    assert gap(second_half(learner, model), expected) <= 1e-12


def test_two_ranks_go_on_with_what_three_ranks_saved(saved: tuple[Path, Weights]) -> None:
    folder, expected = saved
    assert gap(run_ranks(2, "load", folder), expected) <= 1e-12


def test_model_of_three_ranks_loads_in_transformers_and_no_rank_held_all_of_it(saved: tuple[Path, Weights]) -> None:
    folder, _ = saved
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=CASE.dtype)
    gathered = torch.load(folder / "weights.pt", weights_only=True)
    assert gathered.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(gathered[name], parameter) for name, parameter in model.named_parameters())
    files = [file for file in indexed_files(folder / "model") if file.is_file()]
    assert len(files) > 2
    assert len(files) == len(list((folder / "model").glob("*.safetensors")))

    def size(module: torch.nn.Module) -> int:
        return sum(parameter.nbytes for parameter in module.parameters())

    layer, embedding = max(map(size, model.model.layers)), size(model.model.embed_tokens)
    most = [int((folder / f"save-bytes-{rank}").read_text()) for rank in range(3)]
    assert most[0] <= FILE_BYTES + layer + embedding  # the reader of `weights` has one tensor of the layer before
    assert max(most[1:]) <= layer
    assert size(model) > 1.5 * (FILE_BYTES + layer + embedding)


def test_model_without_one_of_its_files_is_told_in_a_sentence(saved: tuple[Path, Weights], tmp_path: Path) -> None:
    shutil.copytree(saved[0] / "model", tmp_path / "model")
    missing = indexed_files(tmp_path / "model")[1]
    missing.unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises(RunError, match=rf"checkpoint must hold the files of a model, got no \['{missing.name}'\]"):
        copy_model(tmp_path / "model", tmp_path / "out")


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
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("read",)


BUILT_ON_CLASS = b"\x80\x02cpathlib\nPosixPath\n}X\x06\x00\x00\x00existsccollections\nOrderedDict\nsb."
"""A pickle that sets `pathlib.PosixPath.exists`."""


@pytest.mark.parametrize(
    "data, told",
    [
        (pickle.dumps(Harmful()), r"builtins.print is not part of an index"),
        (BUILT_ON_CLASS, "a class must stay as it is"),
        (pickle.dumps([1]), "a list"),
    ],
)
def test_index_that_is_another_pickle_is_refused_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, told: str
) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    exists = Path.exists
    with pytest.raises((pickle.UnpicklingError, ValueError), match=told):
        read_index(tmp_path)
    assert not capsys.readouterr().out
    assert type(tmp_path).exists is exists


def test_index_that_leads_out_of_its_folder_is_refused(saved: tuple[Path, Weights], tmp_path: Path) -> None:
    index = read_index(saved[0] / SHARDS)
    (tmp_path / "link").symlink_to(saved[0] / "weights.pt")
    for name in ("../weights.pt", str(saved[0] / "weights.pt"), "link"):
        places = {key: replace(place, relative_path=name) for key, place in (index.storage_data or {}).items()}
        (tmp_path / ".metadata").write_bytes(pickle.dumps(replace(index, storage_data=places)))
        with pytest.raises(ValueError, match="which is no file of this folder"):
            read_index(tmp_path)


def test_damaged_shard_is_told_in_a_sentence(saved: tuple[Path, Weights], tmp_path: Path) -> None:
    shutil.copytree(saved[0], tmp_path / "copy")
    for file in (tmp_path / "copy" / SHARDS).glob("*.distcp"):
        file.write_bytes(b"x" * file.stat().st_size)
    learner, model = one_process()
    with pytest.raises(RunError, match="optimizer must fit the model beside it"):
        load(learner, model, tmp_path / "copy")


def test_shards_that_cannot_be_written_are_an_error_that_is_caught(tmp_path: Path) -> None:
    learner, _ = one_process()
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((RuntimeError, OSError)):
        save_shards(tmp_path / "file" / SHARDS, learner.model, learner.optimizer)
