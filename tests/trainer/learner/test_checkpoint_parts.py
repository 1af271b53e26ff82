"""Parts of a checkpoint: a method with a state of its own finds it again, and a part that is missing is named."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from envgym.errors import RunError
from envgym.runs import RunDirectory
from envgym.trainer.learner.checkpoint import load_parts, newest_checkpoint
from envgym.trainer.methods.protocols import Checkpointed, CurriculumContext, TaskRequest
from envgym.trainer.train import train
from tests.trainer.learner.test_checkpoint import Bench
from tests.trainer.test_critic_run import comparable, settings


class Tally:
    """A part whose state is one number."""

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
    """Return the newest checkpoint of a run with this part."""
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
