"""`envgym eval --search`: what is counted, what is called oracle-selected, what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envgym.episodes import trees_of
from envgym.runs import RunDirectory
from tests.envgym.cli.test_eval import VOWELS, refused

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


def test_what_was_chosen_by_the_reward_says_so_everywhere(command: Command, folder: Path) -> None:
    _, out, _ = command(*BEST, "--search-set", "select=reward")
    assert out.splitlines()[0].startswith("worlds:Vowels, held-out oracle-selected: 4 tasks")
    (record,) = RunDirectory.open(folder / "out").evals()
    assert (record["label"], record["is_oracle"]) == ("held-out oracle-selected", True)
    assert "held-out oracle-selected" in (folder / "out/report.html").read_text()


def test_what_was_chosen_by_its_ending_says_so_everywhere(command: Command, folder: Path) -> None:
    _, out, _ = command(*BEST, "--search-set", "prefer_terminated=true")
    assert out.splitlines()[0].startswith("worlds:Vowels, held-out selected by ending: 4 tasks")
    (record,) = RunDirectory.open(folder / "out").evals()
    assert (record["label"], record["uses_ending"]) == ("held-out selected by ending", True)
    assert "held-out selected by ending" in (folder / "out/report.html").read_text()


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
def test_search_that_cannot_work_is_refused(
    command: Command, files: Files, words: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(command, files, *VOWELS, *words)
