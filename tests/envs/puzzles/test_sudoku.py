"""`puzzles/sudoku-v0`: every grid has one solution, turned ones are one task, and a wrong digit ends the game."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._latin import canonical_symmetry, draw_puzzle, solutions, symmetries, units
from envgym.envs.puzzles.sudoku import Sudoku
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

GRID, FULL = "1.3.341221..43.1", "1234341221434321"


TestSudoku = conformance("puzzles/sudoku-v0", num_tasks=2)
TestSudokuOfFourPaidByTurn = conformance("puzzles/sudoku-v0", num_tasks=2, size=4, turn_reward=True)


def task_of(grid: str, full: str) -> Task:
    payload: JsonObject = {"size": 4, "grid": grid.replace(".", "0"), "solution": full}
    return Task(id="t", prompt="", payload=payload, split=Split.TRAIN)


def say(env: Sudoku, *words: str) -> ObservedEpisode:
    return play_actions(env, task_of(GRID, FULL), *words)


def test_hand_played_grid_pays_filled_places_and_the_last_one_the_rest() -> None:
    env = Sudoku(size=4, turn_reward=True)
    # 5 empty places, each worth 0.5 / 5; the second turn fills one and stops at a place that is filled.
    episode = say(env, "1 2 2", "1,4,4; 1 1 1; 3 3 4", "<answer>3 3 4; 3 4 3</answer>", "4 3 2")
    assert episode.observation == "1 . 3 .\n3 4 1 2\n2 1 . .\n4 3 . 1"
    assert [turn.observation for turn in episode.turns] == [
        "1 2 3 .\n3 4 1 2\n2 1 . .\n4 3 . 1",
        "Row 1, column 1 is filled already.\n1 2 3 4\n3 4 1 2\n2 1 . .\n4 3 . 1",
        "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 . 1",
        "Solved.",
    ]
    assert rewards_of(episode) == pytest.approx([0.1, 0.1, 0.2, 0.6])
    assert episode.ending is Ending.TERMINATED


def test_a_wrong_digit_ends_the_game_with_what_was_filled_before_it() -> None:
    episode = say(Sudoku(size=4, turn_reward=True), "1 2 2; 1 4 3; 3 3 4")
    assert (episode.turns[0].observation, episode.ending) == ("Wrong: Row 1, column 4 is not 3.", Ending.TERMINATED)
    assert episode.reward == pytest.approx(0.1)
    assert say(Sudoku(size=4), "1 2 4").reward == 0.0


@pytest.mark.parametrize("words", ["", "1 2", "1 2 5", "0 1 1", "1 2 2 1", "row 1 column 2 is 2", "1 2 two", "१ २ २"])
def test_what_is_no_move_is_answered_and_fills_nothing(words: str) -> None:
    episode = say(Sudoku(size=4), words)
    assert episode.turns[0].observation == (
        "Say ROW COLUMN DIGIT, such as 1 2 3, or several of these with ; between them.\n" + episode.observation
    )
    assert episode.ending is None


@pytest.mark.parametrize("size, blanks", [(4, 6), (4, 10), (6, 20), (9, 30), (9, 50)])
def test_drawn_grids_have_the_one_solution_that_was_drawn(size: int, blanks: int) -> None:
    grid, full = draw_puzzle(np.random.default_rng(size + blanks), size, blanks)
    assert grid.count(0) == blanks
    assert list(solutions(grid, size)) == [full]
    assert {tuple(sorted(full[place] for place in unit)) for unit in units(size)} == {tuple(range(1, size + 1))}


def test_number_of_grids_is_the_known_one() -> None:
    assert sum(1 for _ in solutions((0,) * 16, 4)) == 288
    assert list(solutions((1, 1, *(0,) * 14), 4)) == []


def test_grids_of_four_are_two_puzzles_up_to_all_symmetries() -> None:
    # 288 full grids in 2 classes, as is known for 2 x 2 boxes.
    assert len({canonical_symmetry(full, 4).canonical(full) for full in solutions((0,) * 16, 4)}) == 2
    assert [len(symmetries(size)) for size in (4, 6, 9)] == [128, 4, 8]


@settings(max_examples=12)
@given(st.sampled_from([4, 6, 9]), st.integers(0, 2**32 - 1))
def test_renamed_and_turned_grids_are_the_same_task_and_shown_as_drawn(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = tuple(int(digit) for digit in rng.integers(0, size + 1, size=size * size))
    symmetry = canonical_symmetry(grid, size)
    assert symmetry.apply(symmetry.canonical(grid)) == grid
    names = (0, *(rng.permutation(size) + 1).tolist())
    places = symmetries(size)[int(rng.integers(len(symmetries(size))))]
    other = tuple(names[grid[place]] for place in places)
    assert canonical_symmetry(other, size).canonical(other) == symmetry.canonical(grid)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_oracle_solves_every_grid(size: int) -> None:
    env = Sudoku(size=size)
    for split in Split:
        task = env.tasks.task(split, 0)
        episode = play(env, oracle_of(env), seed=0, task=task)
        assert (episode.reward, len(episode.turns) <= size) == (1.0, True)
        assert episode.observation == task.prompt


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(Sudoku(size=4), task_of(GRID, FULL), "1 2 4", "1 2 2")
    assert twin.terminated
    assert own.observation.startswith("1 2 3 .")
