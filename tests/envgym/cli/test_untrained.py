"""What is said of a run that learned nothing, and of the value that is fitted to one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envgym.cli.results import print_untrained
from envgym.runs.directory import RunDirectory
from tests.envgym.cli.test_eval import refused

RAISE = "raise agent.max_turn_tokens or agent.max_context_tokens"
Command = Callable[..., tuple[int, str, str]]


def test_run_that_trained_nothing_says_so(command: Command, folder: Path) -> None:
    lines = "import envgym\nfrom worlds import Vowels\nclass Same(Vowels):\n    def respond(self, action):\n"
    (folder / "same.py").write_text(lines + "        return envgym.Reply(reward=0.0, terminated=True)\n")
    few = ("run.steps=1", "rollout={groups: 1, group_size: 2}", "evaluation.tasks=1", "agent.max_turn_tokens=2")
    code, out, _ = command(
        "train", "run.yaml", *(word for key in ("envs.0.id=same:Same", *few) for word in ("--set", key))
    )
    told = (
        "no train step updated the policy: every group was dropped (zero reward variance); the episodes of a group had "
        "the same reward, 0 on average: choose easier tasks, add a warm start (an sft section), or raise "
        "rollout.group_size"
    )
    assert (code, out.splitlines()[-3]) == (0, told)


def test_run_with_nothing_left_to_learn_asks_for_harder_tasks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={})
    solved = {"optim/updates": 0.0, "filter/zero_variance": 1.0, "reward/mean": 1.0, "train/success": 1.0}
    run.append_metrics({"step": 1, **solved})
    print_untrained(run.path)
    told = "had the same reward, 1 on average: choose harder tasks, because the policy solves these"
    assert told in capsys.readouterr().out


def test_run_of_which_one_step_trained_says_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={})
    run.append_metrics({"step": 0, "sft/updates": 3.0})
    print_untrained(run.path)
    assert capsys.readouterr().out == ""
    run.append_metrics(
        {"step": 1, "optim/updates": 0.0, "filter/kept": 0.0, "filter/too_long": 1.0, "filter/none": 0.0}
    )
    print_untrained(run.path)
    told = "no train step updated the policy: every group was dropped (too long); no episode had a valid reward: fix"
    assert capsys.readouterr().out.startswith(told)
    run.append_metrics({"step": 2, "optim/updates": 1.0})
    print_untrained(run.path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "sft,truncated,advice",
    [
        (None, 0.5, "choose easier tasks, add a warm start (an sft section), or"),
        ({}, 0.5, "choose easier tasks, lengthen the warm start (sft.episodes, sft.epochs), or"),
        ({}, 0.75, f"{RAISE}, because 75% of the episodes ended as TRUNCATED_TOKENS, lengthen the warm start (sft.epi"),
    ],
)
def test_advice_follows_from_the_endings_and_from_the_warm_start(
    folder: Path, capsys: pytest.CaptureFixture[str], sft: object, truncated: float, advice: str
) -> None:
    run = RunDirectory.create(folder / "run", name="run", config={"sft": sft})
    failed = {"optim/updates": 0.0, "filter/zero_variance": 1.0, "reward/mean": 0.0, "train/success": 0.0}
    run.append_metrics({"step": 1, **failed, "ending/TRUNCATED_TOKENS": truncated})
    print_untrained(run.path)
    assert capsys.readouterr().out.partition("0 on average: ")[2].startswith(advice)


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
