"""`envgym eval`: a search that chooses, and how many tasks and samples are played."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envgym.core.tasks import Split
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from tests.envgym.cli.test_eval import VOWELS, refused
from tests.support.tiny_runs import EvenWords

Command = Callable[..., tuple[int, str, str]]
Files = Callable[[], Mapping[str, bytes]]
BEST = (*VOWELS, "--tasks", 4, "--search", "best_of", "--search-set", "n=3")


def test_search_is_counted_whole_and_its_answer_is_one_episode(command: Command, folder: Path) -> None:
    code, out, _ = command(*BEST)
    assert code == 0
    assert (
        out.splitlines()[0] == "worlds:Vowels, held-out: 4 tasks, 1 sample(s) each, temperature 1, best_of by majority"
    )
    run = RunDirectory.open(folder / "out")
    (record,) = run.evals()
    assert (record["search"], record["selected_by"], record["is_oracle"]) == ("best_of", "majority", False)
    assert [len(rewards) for rewards in record["rewards"].values()] == [1] * 4
    trees = trees_of(run.episodes(label="held-out"))
    assert [sum(node.ending is not None for node in tree.nodes) for tree in trees] == [3] * 4
    assert [len(tree.leaves) for tree in trees] == [1] * 4
    assert record["costs"]["tokens_generated"] == sum(tree.cost.tokens_generated for tree in trees) / 4


@pytest.mark.parametrize(
    "setting, label, field",
    [
        ("select=reward", "held-out oracle-selected", "is_oracle"),
        ("prefer_terminated=true", "held-out selected by ending", "uses_ending"),
    ],
)
def test_choice_by_reward_or_ending_shows(command: Command, folder: Path, setting: str, label: str, field: str) -> None:
    _, out, _ = command(*BEST, "--search-set", setting)
    assert out.splitlines()[0].startswith(f"worlds:Vowels, {label}: 4 tasks")
    (record,) = RunDirectory.open(folder / "out").evals()
    assert (record["label"], record[field]) == (label, True)
    assert label in (folder / "out/report.html").read_text()


def test_budget_is_kept_for_every_task(command: Command, folder: Path) -> None:
    command(*BEST, "--search-set", "n=null", "--search-set", "budget.tokens_generated=40")
    trees = trees_of(RunDirectory.open(folder / "out").episodes(label="held-out"))
    assert all(40 <= tree.cost.tokens_generated < 40 + 8 for tree in trees)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--search", "best_off"), "did you mean best_of"),
        (("--search", "best_of", "--search-set", "k=3"), "settings key must be known, got k"),
        (("--search", "best_of", "--search-set", "select=me"), "answer scorer must be a known name"),
        (("--search", "best_of", "--search-set", "budget.tokens_generated=7"), "budget must hold at least one chain"),
        (
            ("--search", "best_of", "--endpoint", "http://localhost:1/v1"),
            "search must be chain for a policy of messages",
        ),
    ],
)
def test_unworkable_search_is_refused(command: Command, files: Files, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(command, files, *VOWELS, *words)


def test_split_with_fewer_tasks_than_were_asked_for_says_so(command: Command) -> None:
    words = list(VOWELS)
    words[words.index("worlds:Vowels")] = "tests.support.tiny_runs:EvenWords"
    size = EvenWords.tasks.size(Split.TEST)
    _, out, _ = command(*words, "--tasks", 50)
    assert out.splitlines()[1] == f"tasks        {size} of {size}: the split has no more; 50 were asked for"
    _, out, _ = command(*words[:-1], "other", "--tasks", size)
    assert "asked for" not in out


def test_training_on_a_split_with_fewer_tasks_says_so(command: Command) -> None:
    size = EvenWords.tasks.size(Split.TEST)
    keys = (
        "envs.0.id=tests.support.tiny_runs:EvenWords",
        "evaluation.tasks=50",
        "evaluation.success_at=1",
        "run.steps=2",
    )
    during = ("evaluation.every=1", "evaluation.tasks_during=1")
    _, out, _ = command("train", "run.yaml", *(word for key in (*keys, *during) for word in ("--set", key)))
    (told,) = [line for line in out.splitlines() if line.startswith("tasks  ")]
    assert told == f"tasks        {size} of {size}: the split has no more; 50 were asked for"


def test_default_directory_tells_evaluations_apart(command: Command) -> None:
    words = VOWELS[:-2]
    told = {
        (): "",
        ("--samples", 2): "-2-samples",
        ("--split", "train", "--temperature", 0.5, "--seed", 3): "-train-temperature-0.5-seed-3",
        ("--search", "best_of", "--search-set", "n=2"): "-best_of",
    }
    for options, ending in told.items():
        code, out, _ = command(*words, "--tasks", 1, *options)
        assert (code, out.splitlines()[-1]) == (0, f"report: runs/eval-tiny-worlds_Vowels{ending}/report.html")
    code, out, _ = command(*words, "--samples", 2, "--tasks", 2, "--resume")
    assert (code, out.splitlines()[-1]) == (0, "report: runs/eval-tiny-worlds_Vowels-2-samples/report.html")
