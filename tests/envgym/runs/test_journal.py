"""The journal: what was written whole comes back, whatever cut the file short."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envgym.errors import RunError
from envgym.runs.journal import Journal
from tests.support.example_trees import HARD_CASES, outcome_tree


def test_episodes_come_back_by_evaluation(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "finished.jsonl")
    trees = [case() for case in HARD_CASES]
    for number, tree in enumerate(trees):
        journal.add("held-out" if number % 2 else "seen", tree, seconds=number / 2)
    again = Journal(tmp_path / "finished.jsonl")
    assert (again.of("seen"), again.of("held-out")) == (trees[0::2], trees[1::2])
    assert again.seconds == {"seen": 3.0, "held-out": 2.5}  # of the seventh and of the sixth episode
    assert again.of("other") == []


@settings(max_examples=25)
@given(cut=st.integers(min_value=0, max_value=3000))
def test_cut_file_gives_whole_lines_and_goes_on_from_there(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "finished.jsonl"
    trees = [outcome_tree(f"t{number}", 1.0) for number in range(3)]
    journal = Journal(path)
    for tree in trees:
        journal.add("seen", tree, seconds=0.0)
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 0)])
    whole = path.read_bytes().count(b"\n")
    resumed = Journal(path)
    assert resumed.of("seen") == trees[:whole]
    for tree in trees[whole:]:
        resumed.add("seen", tree, seconds=0.0)
    assert Journal(path).of("seen") == trees
    assert path.read_bytes() == data


def test_whole_line_that_is_no_episode_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("seen", outcome_tree("t", 1.0), seconds=0.0)
    with path.open("a") as file:
        file.write('{"evaluation": "seen", "seconds": 1}\n')
    text = path.read_text()
    with pytest.raises(RunError, match=r"line must be an episode, got KeyError: 'tree' \(.*finished.jsonl, line 2\)"):
        Journal(path)
    assert path.read_text() == text


@pytest.mark.parametrize("depth", [900, 3_000, 200_000])
def test_a_line_of_nested_brackets_is_one_sentence(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    for text in ("[" * depth, '{"evaluation": "a", "seconds": 1, "tree": ' + '{"a":' * depth + "1" + "}" * depth + "}"):
        path.write_text(text + "\n", encoding="utf-8")
        with pytest.raises(RunError, match=r"line must be an episode, got .*line 1\); delete that line"):
            Journal(path)
