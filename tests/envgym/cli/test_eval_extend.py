"""An evaluation that is resumed with more tasks or samples is one of this size from the start; its wall time."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.settings import EvalSettings
from envgym.api import evaluate
from envgym.config.settings import build_settings
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.runs.wall_time import read_wall_time
from tests.envgym.cli.test_eval import VOWELS, Command

SAMPLED = ("--temperature", 1)


def played(path: Path) -> list[tuple[object, ...]]:
    """Return tokens, text and reward of every episode; log-probs depend on what else is in the batch, by rounding."""
    return [
        (
            tree.id,
            tree.seed,
            [[segment.token_ids for segment in node.edge.segments] for node in tree.nodes],
            [node.outcome and (str(node.outcome.action), node.outcome.reward) for node in tree.nodes],
            [node.ending for node in tree.nodes],
        )
        for tree in trees_of(RunDirectory.open(path).episodes())
    ]


@pytest.mark.parametrize(
    "first, then",
    [(("--tasks", 2, "--samples", 2), ("--tasks", 5)), (("--tasks", 2), ("--tasks", 4, "--samples", 3))],
)
def test_extended_evaluation_is_that_of_the_size_from_the_start(
    command: Command, folder: Path, first: tuple[object, ...], then: tuple[object, ...]
) -> None:
    command(*VOWELS, *SAMPLED, *first)
    kept = {row["tree_id"]: row for row in RunDirectory.open(folder / "out").episodes()}
    code, _, err = command("eval", "--out", "out", "--resume", *then)
    assert code == 0, err
    rows = {row["tree_id"]: row for row in RunDirectory.open(folder / "out").episodes()}
    assert {tree_id: rows[tree_id] for tree_id in kept} == kept, "not one is played again"
    whole = [*first, *then]
    command(*VOWELS[:-1], "whole", *SAMPLED, *whole)
    assert played(folder / "out") == played(folder / "whole")
    (extended,), (at_once,) = (RunDirectory.open(folder / name).evals() for name in ("out", "whole"))
    assert extended["rewards"] == at_once["rewards"]
    assert list(extended["rewards"]) == list(at_once["rewards"])
    assert extended["endings"] == at_once["endings"]


def test_extension_is_recorded_and_may_be_repeated(command: Command, folder: Path) -> None:
    command(*VOWELS, "--tasks", 2)
    command("eval", "--out", "out", "--resume", "--tasks", 3, "--concurrency", 2)
    command("eval", "--out", "out", "--resume", "--tasks", 4)
    history = [json.loads(line) for line in (folder / "out/history.jsonl").read_text().splitlines()]
    assert history == [
        {"step": 0, "changed": {"engine.concurrency": [64, 2], "evaluation.tasks": [2, 3]}},
        {"step": 0, "changed": {"evaluation.tasks": [3, 4]}},
    ]
    assert RunDirectory.open(folder / "out").config["evaluation"]["tasks"] == 4
    before = (folder / "out/evals").glob("*").__next__().read_bytes()
    assert command("eval", "--out", "out", "--resume")[0] == 0
    assert (folder / "out/evals").glob("*").__next__().read_bytes() == before


def test_extension_that_was_stopped_goes_on(command: Command, folder: Path) -> None:
    command(*VOWELS, "--tasks", 2)
    run = RunDirectory.open(folder / "out")  # as it is when the process dies before its first new episode
    config = run.config
    run.change_config({**config, "evaluation": {**config["evaluation"], "tasks": 5}}, step=0)
    assert command("eval", "--out", "out", "--resume")[0] == 0
    assert len(RunDirectory.open(folder / "out").evals()[0]["rewards"]) == 5


def test_model_that_is_named_again_keeps_the_size_of_the_run(command: Command, folder: Path) -> None:
    command(*VOWELS, "--tasks", 2)
    code, _, err = command(*VOWELS, "--resume")
    assert code == 0, err
    assert len(RunDirectory.open(folder / "out").evals()[0]["rewards"]) == 2
    assert command(*VOWELS, "--resume", "--tasks", 3)[0] == 0
    assert len(RunDirectory.open(folder / "out").evals()[0]["rewards"]) == 3


def test_what_cannot_change_is_named_in_one_sentence(command: Command, files: Callable[[], object]) -> None:
    command(*VOWELS, "--tasks", 3, "--samples", 2)
    before = files()
    for words, told in (
        (("--tasks", 2), "evaluation.tasks must be at least the 3 of the run, got 2 (out); raise it, or start another"),
        (("--samples", 1), "evaluation.samples must be at least the 2 of the run, got 1"),
        (("--tasks", 0), "evaluation.tasks must be greater than or equal to 1, got 0"),
        (
            ("--tasks", 4, "--temperature", 0, "--seed", 0, "--env", "worlds:Vowels"),
            "options must be among --tasks, --samples, --device, --threads, --concurrency, --max-batch, --cache-gib"
            " when an evaluation is resumed, got --env, --temperature, --seed (envgym eval --resume); leave out the",
        ),
    ):
        code, out, err = command("eval", "--out", "out", "--resume", *words)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert told in err
    assert files() == before, "nothing may be written"


def test_in_python_tasks_are_raised_by_the_same_call(folder: Path) -> None:
    settings = {"name": "plain", "max_turn_tokens": 8, "max_context_tokens": 200, "on_length": "close"}
    more = partial(evaluate, "tiny", "worlds:Vowels", agent=settings, directory=folder / "out")
    for tasks in (2, 4):
        result = more(tasks=tasks, resume=tasks > 2)
        assert [len(record.rewards) for record in result.evaluations] == [tasks]
    with pytest.raises(RunError, match=r"evaluation\.tasks must be at least the 4 of the run, got 3"):
        more(tasks=3, resume=True)


def test_wall_time_is_one_number_on_terminal_in_json_and_in_the_report(command: Command, folder: Path) -> None:
    settings = build_settings(EvalSettings, _settings(command, folder), where="test")
    run_evaluation(settings, resume=True, started=time.perf_counter() - 3000)
    seconds = json.loads(command("eval", "--out", "out", "--resume", "--json")[1])["wall_time_s"]
    assert seconds >= 3000
    assert seconds == sum(process.seconds for process in read_wall_time(folder / "out"))
    lines = command("eval", "--out", "out", "--resume")[1].splitlines()
    minutes, rest = divmod(round(seconds), 60)
    assert lines[-2] == f"wall time    {minutes} min {rest:02d} s"
    assert f'"duration_s":{seconds}' in (folder / "out/report.html").read_text()


def _settings(command: Command, folder: Path) -> dict[str, Any]:
    command(*VOWELS, "--tasks", 1)
    config = RunDirectory.open(folder / "out").config
    return {**config, "evaluation": {**config["evaluation"], "tasks": 2}}


def test_command_counts_from_the_start_of_its_process() -> None:
    code = "import time; time.sleep(0.6)\nfrom envgym.cli.common import process_start as start\n"
    words = [sys.executable, "-c", f"{code}print(time.perf_counter() - start())"]
    before = time.perf_counter()
    seconds = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert 0.6 <= seconds <= time.perf_counter() - before + 0.02  # the system counts in ticks of 10 ms
