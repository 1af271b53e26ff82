"""`envgym value`: a value is fitted beside a run, and leads a search of its model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from envgym.runs import RunDirectory
from tests.envgym.cli.test_eval import refused

Command = Callable[..., tuple[int, str, str]]
Files = Callable[[], Mapping[str, bytes]]
FIT = ("value", "runs/vowels", "--episodes", 64, "--set", "optim.minibatches=4", "--set", "optim.epochs=2")
VALUE = ("--search-set", "value.name=critic", "--search-set", "value.run=runs/vowels-value")


def test_value_of_a_run_leads_a_search_of_its_model(command: Command, files: Files, folder: Path) -> None:
    assert command("train", "run.yaml", "--set", "run.steps=0")[0] == 0
    before = files()
    code, out, err = command(*FIT)
    assert code == 0
    assert err.splitlines()[-1].startswith("fit: 8/8, ")
    lines = out.splitlines()
    assert lines[0] == "on training tasks that were held back:"
    assert lines[-1] == f"use it with: --search mcts {' '.join(VALUE)}"
    written = {name for name, data in files().items() if before.get(name) != data}
    assert all(name.startswith("runs/vowels-value/") for name in written), "the policy's run is only read"
    found = RunDirectory.open(folder / "runs/vowels-value").metrics()[-1]
    assert 0 < found["critic/target"] < 1
    assert abs(found["critic/value"] - found["critic/target"]) < 0.5 * found["critic/target"] + 0.1
    words = ("eval", "--model", "runs/vowels", "--tasks", 4, "--search", "mcts", *VALUE)
    code, out, _ = command(*words, "--out", "out")
    assert code == 0
    (record,) = RunDirectory.open(folder / "out").evals()
    assert (record["search"], record["selected_by"], record["is_oracle"]) == ("mcts", "critic", False)
    _, out, _ = command(*FIT, "--out", "again", "--json")
    assert json.loads(out)["metrics"]["critic/value"] == found["critic/value"]


def test_what_cannot_be_fitted_or_asked_is_refused(command: Command, files: Files) -> None:
    assert command("train", "run.yaml", "--set", "run.steps=0")[0] == 0
    assert "episodes must fill 8 groups of 4, got 31" in refused(command, files, *FIT[:2], "--episodes", 31)
    assert "settings key must be known" in refused(command, files, *FIT, "--set", "optim.rate=1")
    assert "run directory must be new or empty" in refused(command, files, *FIT, "--out", "runs/vowels")
    words = ("eval", "--model", "runs/vowels", "--search", "mcts", *VALUE[:3])
    assert "run must have trained a critic, got credit grpo" in refused(command, files, *words, "value.run=runs/vowels")
