"""Versions of weights as files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from envgym.agents.policies.weights import weight_store
from envgym.agents.policies.weights.served_weights import load_weights
from envgym.agents.policies.weights.transport import FileTransport
from envgym.agents.policies.weights.weight_store import StoredWeights, WeightStore, digest
from envgym.errors import InvalidInput, UnknownName
from tests.agents.policies.serving.running import changed
from tests.agents.policies.small_models import llama


def weights(value: float) -> list[tuple[str, Tensor]]:
    return [("a", torch.full((2, 3), value)), ("b", torch.tensor([value], dtype=torch.bfloat16))]


def test_a_version_is_read_as_it_was_written(tmp_path: Path) -> None:
    WeightStore(tmp_path).write(weights(1.5), 12)
    found = WeightStore(tmp_path).newest()
    assert found is not None
    assert (found.version, found.directory.name) == (12, "version-00000012")
    tensors = dict(found.tensors())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in weights(1.5))
    assert found.digests["a"] == hashlib.sha256(torch.full((2, 3), 1.5).numpy().tobytes()).hexdigest()
    assert found.digests == {name: digest(tensor) for name, tensor in tensors.items()}


def test_tensors_of_more_than_a_file_are_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_store, "_SHARD_BYTES", 20)
    stored = WeightStore(tmp_path).write(weights(2.0), 1)
    assert len(list(stored.directory.glob("*.safetensors"))) == 2
    assert {name for name, _ in stored.tensors()} == {"a", "b"}


def test_a_writer_that_dies_leaves_no_version(tmp_path: Path) -> None:
    def dying() -> Iterator[tuple[str, Tensor]]:
        yield weights(1.0)[0]
        raise KeyboardInterrupt

    store = WeightStore(tmp_path)
    store.write(weights(0.0), 1)
    with pytest.raises(KeyboardInterrupt):
        store.write(dying(), 2)
    assert store.versions() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["version-00000001"]


def test_a_version_without_its_marker_is_none(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    first, second = store.write(weights(0.0), 1), store.write(weights(1.0), 2)
    (second.directory / "STABLE").unlink()
    newest = store.newest()
    assert newest is not None
    assert newest.directory == first.directory
    with pytest.raises(InvalidInput, match="weights directory must hold weights with the marker STABLE"):
        StoredWeights.read(second.directory)
    store.remove_old()
    assert not second.directory.exists()


def test_a_version_that_is_written_again_is_replaced(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.write(weights(0.0), 3)
    assert dict(store.write(weights(4.0), 3).tensors())["b"].item() == 4.0
    assert store.versions() == [3]


def test_only_the_newest_versions_stay(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path, keep=3)
    for version in range(1, 8):
        transport.publish(weights(float(version)), version)
        transport.finish()
        assert len(list(tmp_path.iterdir())) <= 3
    assert WeightStore(tmp_path).versions() == [5, 6, 7]


def test_a_run_resumed_from_before_keeps_what_it_writes(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path)
    for version in (5, 6, 7, 3):
        transport.publish(weights(float(version)), version)
        transport.finish()
    newest = WeightStore(tmp_path).newest()
    assert newest is not None
    assert (newest.version, dict(newest.tensors())["b"].item()) == (3, 3.0)


def test_fewer_than_two_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="kept versions must be at least 2, got 1"):
        WeightStore(tmp_path, keep=1)


def test_weights_that_are_not_the_models_are_refused_before_any_is_copied(tmp_path: Path) -> None:
    model, store = llama(), WeightStore(tmp_path)
    before = {name: digest(parameter) for name, parameter in model.named_parameters()}
    good = changed(model, 2.0)
    with pytest.raises(InvalidInput, match=r"new weights must hold all .* without lm_head\.weight"):
        load_weights(model, store.write([pair for pair in good if pair[0] != "lm_head.weight"], 1))
    with pytest.raises(UnknownName):
        load_weights(model, store.write([*good, ("other", torch.zeros(1))], 2))
    with pytest.raises(InvalidInput, match=r"must be of the server's torch.float32, got .*bfloat16"):
        load_weights(model, store.write([(name, tensor.bfloat16()) for name, tensor in good], 3))
    assert {name: digest(parameter) for name, parameter in model.named_parameters()} == before
    load_weights(model, store.write(good, 4))
    assert {name: digest(parameter) for name, parameter in model.named_parameters()} == {
        name: digest(tensor) for name, tensor in good
    }
