"""`envgym eval`: where an evaluation is written by default, and what it says where the split is smaller than asked."""

from collections.abc import Callable

from envgym.core.tasks import Split
from tests.envgym.cli.test_eval import VOWELS
from tests.support.tiny_runs import EvenWords

Command = Callable[..., tuple[int, str, str]]


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
