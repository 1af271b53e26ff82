"""A checkpoint is complete or not there, and so are its parts; what was saved is what comes back."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.trainer.learner.checkpoint import (
    TrainState,
    checkpoints,
    load_parts,
    load_state,
    newest_checkpoint,
    save_checkpoint,
    save_model,
)
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.settings import OptimSettings
from envgym.trainer.methods.protocols import Checkpointed, CurriculumContext, TaskRequest, TaskStats
from envgym.trainer.train import train
from tests.support.tiny_runs import comparable
from tests.trainer.test_critic_run import settings

SHAPE = TinySettings(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=2, intermediate_size=64)
STATS = {("math/arithmetic-v0", 7): TaskStats(4, 2.5, 2.25, 3), ("hard", 0): TaskStats(1, 0.0, 0.0, 1)}


class Bench:
    """A tiny model after one update."""

    def __init__(self) -> None:
        loaded = load("tiny", trainable=True, tiny=SHAPE)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.learner = learner_of(self.model)
        self.parts: dict[str, Checkpointed] = {}
        self.update(0)

    def update(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.learner.optimizer.step()

    def save(self, folder: Path, step: int, keep: int = 2) -> Path:
        state = TrainState(step=step, stats=STATS)
        return save_checkpoint(
            folder,
            state=state,
            tokenizer=self.tokenizer,
            learner=self.learner,
            keep=keep,
            parts=self.parts,
        )

    def weights(self) -> torch.Tensor:
        return weights_of(self.model)


def learner_of(model: nn.Module) -> Learner:
    return Learner(model, optim=OptimSettings(), num_steps=1, device=torch.device("cpu"))


def die(*_: object) -> None:
    raise KeyboardInterrupt


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def test_state_comes_back_as_it_was(bench: Bench, tmp_path: Path) -> None:
    place = bench.save(tmp_path, 3)
    assert load_state(place) == TrainState(step=3, stats=STATS)


def test_next_update_after_a_reload_equals_that_of_the_original(tmp_path: Path) -> None:
    original = Bench()
    place = original.save(tmp_path, 1)
    resumed = Bench()
    resumed.model = load(place / "model", trainable=True).model
    resumed.learner = learner_of(resumed.model)
    resumed.learner.load(place)
    assert torch.equal(resumed.weights(), original.weights())
    original.update(1)
    resumed.update(1)
    assert torch.equal(resumed.weights(), original.weights())


def test_model_of_a_checkpoint_is_an_ordinary_directory_with_its_tokenizer(bench: Bench, tmp_path: Path) -> None:
    place = bench.save(tmp_path, 1)
    loaded = load(place / "model")
    text = "What is 6 * 7?"
    assert loaded.tokenizer(text)["input_ids"] == bench.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.chat_template == bench.tokenizer.chat_template
    assert torch.equal(weights_of(loaded.model), bench.weights())


def test_newest_are_kept(bench: Bench, tmp_path: Path) -> None:
    for step in (0, 5, 10, 999_995, 1_000_000):
        bench.save(tmp_path, step)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-999995", "step-1000000"]


def test_saving_a_step_again_replaces_it(bench: Bench, tmp_path: Path) -> None:
    first = bench.save(tmp_path, 1)
    (first / "model" / "mine.txt").write_text("left over")
    assert bench.save(tmp_path, 1) == first
    assert not (first / "model" / "mine.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


@pytest.mark.parametrize("moment", ["checkpoint.write_json", "checkpoint.move_into_place", "learner.write_model"])
def test_crash_while_saving_leaves_the_last_checkpoint_the_newest(
    moment: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(f"envgym.trainer.learner.{moment}", die)
        with pytest.raises(KeyboardInterrupt):
            bench.save(tmp_path, 2)
    (last,) = checkpoints(tmp_path)
    assert (last.name, load_state(last).step) == ("step-000001", 1)
    bench.save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003"]  # and no draft


def test_folder_without_its_state_is_no_checkpoint(bench: Bench, tmp_path: Path) -> None:
    bench.save(tmp_path, 1)
    (tmp_path / "step-000002" / "model").mkdir(parents=True)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000001"]


def test_state_is_plain_json(bench: Bench, tmp_path: Path) -> None:
    data = json.loads((bench.save(tmp_path, 3) / "state.json").read_text())
    assert data == {"step": 3, "stats": [["math/arithmetic-v0", 7, 4, 2.5, 2.25, 3], ["hard", 0, 1, 0.0, 0.0, 1]]}


def test_model_alone_is_written_whole(bench: Bench, tmp_path: Path) -> None:
    save_model(bench.model, tmp_path / "reference")
    assert [path.name for path in tmp_path.iterdir()] == ["reference"]
    saved = type(bench.model).from_pretrained(tmp_path / "reference")
    assert torch.equal(weights_of(saved), bench.weights())


def test_full_disk_is_told_and_checkpoint_stays(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench.save(tmp_path, 1)

    def write(*_: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed writing file data/0")

    monkeypatch.setattr(torch, "save", write)
    with pytest.raises(RunError, match=r"checkpoint must be written completely, got .* failed writing file data/0 \("):
        bench.save(tmp_path, 2)
    assert checkpoints(tmp_path) == [before]


class Tally:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def save(self, folder: Path) -> None:
        (folder / "count.json").write_text(json.dumps({"count": self.count}))

    def load(self, folder: Path) -> None:
        self.count = json.loads((folder / "count.json").read_text())["count"]


class Onward(Tally):
    """A curriculum that takes the next tasks in order, wherever it stands, and forgets nothing but at a crash."""

    def choose(self, context: CurriculumContext) -> Sequence[TaskRequest]:
        first, self.count = self.count, self.count + context.num_groups
        return [TaskRequest(context.supplies[0].name, index, context.group_size) for index in range(first, self.count)]


def saved(folder: Path, part: Checkpointed) -> Path:
    bench = Bench()
    bench.parts = {"curriculum": part}
    bench.save(folder / "checkpoints", 1)
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def test_part_comes_back_as_it_was(tmp_path: Path) -> None:
    restored = Tally()
    load_parts(saved(tmp_path, Tally(41)), {"curriculum": restored})
    assert restored.count == 41


def test_missing_part_is_named_with_what_to_do(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, Tally(41))
    with pytest.raises(RunError, match=r"checkpoint must hold the state of replay, got none \(.*parts/replay\); start"):
        load_parts(checkpoint, {"replay": Tally()})


def test_part_of_another_method_is_refused(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, Tally(41))
    (checkpoint / "parts" / "curriculum" / "count.json").write_text("{}")
    with pytest.raises(RunError, match=r"state of curriculum must be one that Tally wrote, got 'count' \("):
        load_parts(checkpoint, {"curriculum": Tally()})


@pytest.mark.parametrize("fault", ["2 bytes of 13", "No such file or directory"])
def test_damaged_part_makes_a_checkpoint_unreadable(fault: str, tmp_path: Path) -> None:
    file = saved(tmp_path, Tally(41)) / "parts" / "curriculum" / "count.json"
    if fault.startswith("2 bytes"):
        file.write_text("{}")
    else:
        file.unlink()
    with pytest.raises(RunError, match=f"checkpoint must be complete, got parts/curriculum/count.json: {fault}"):
        newest_checkpoint(tmp_path)


def test_curriculum_with_a_state_goes_on_where_the_run_stood(tmp_path: Path) -> None:
    chosen = settings(tmp_path, curriculum={"name": f"{__name__}:Onward"}, optim={"lr": 0.1})
    train(chosen)
    run = RunDirectory.open(tmp_path)
    whole = comparable(run)
    shutil.rmtree(run.checkpoints / "step-000002")
    train(chosen, resume=True)
    assert comparable(run) == whole
    assert json.loads((run.checkpoints / "step-000002" / "parts" / "curriculum" / "count.json").read_text()) == {
        "count": 4
    }
