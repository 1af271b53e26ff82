"""`puzzles/minesweeper-v0`: numbers count mines, conclusions hold on every board, and no board needs a guess."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._minesweeper import UNKNOWN, conclusions, neighbors_of, open_cells
from envgym.envs.puzzles.minesweeper import Minesweeper
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

BOARD = ("s....", ".....", "....*", ".*...", ".....")


TestMinesweeper = conformance("puzzles/minesweeper-v0", num_tasks=6)
TestMinesweeperPaidByTurn = conformance("puzzles/minesweeper-v0", num_tasks=2, size=5, mines=5, turn_reward=True)


def task_of(*rows: str) -> Task:
    return Task(id="t", prompt="", payload={"board": list(rows)}, split=Split.TRAIN)


def test_hand_played_board_pays_opened_places_and_the_last_one_the_rest() -> None:
    env = Minesweeper(turn_reward=True)
    # 23 safe places, of which the start opens 14; each of the other 9 is worth 0.5 / 9, the last the rest to 1.
    episode = play_actions(
        env, task_of(*BOARD), "open 4 3", "flag 4 2", "flag, 4, 2", "OPEN 5 5", "open 4 1", "open 5 1", "open 5 2"
    )
    assert episode.observation.split("\n") == ["00000", "00011", "1111#", "#####", "#####", "Mines: 2."]
    assert [turn.observation.split("\n")[3] for turn in episode.turns[:5]] == [
        "##1##",
        "#F1##",
        "##1##",
        "##111",
        "1#111",
    ]
    assert rewards_of(episode) == pytest.approx([0.5 / 9, 0.0, 0.0, 2.5 / 9, 0.5 / 9, 0.5 / 9, 1 - 4 / 9])


def test_the_last_safe_place_ends_the_episode_with_reward_1() -> None:
    env = Minesweeper()
    episode = play(env, oracle_of(env), seed=0, task=task_of(*BOARD))
    assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)
    assert episode.turns[-1].observation == "Cleared: every safe place is open."


def test_a_mine_ends_the_episode_without_reward() -> None:
    episode = play_actions(Minesweeper(), task_of(*BOARD), "open 4 2")
    assert (episode.turns[0].observation, episode.reward) == ("You opened a mine.", 0.0)
    assert episode.ending is Ending.TERMINATED


@pytest.mark.parametrize("words", ["", "open", "open 0 1", "open 6 1", "open 1 1 1", "close 1 1", "open 1 1\nopen 4 3"])
def test_what_is_no_move_is_answered_and_opens_nothing(words: str) -> None:
    episode = play_actions(Minesweeper(size=5, mines=5), task_of(*BOARD), words)
    assert episode.turns[0].observation == (
        "Say open ROW COLUMN, such as open 1 5, or flag ROW COLUMN to mark a mine.\n" + episode.observation
    )


def test_an_open_place_stays_as_it_is() -> None:
    episode = play_actions(Minesweeper(), task_of(*BOARD), "open 1 1")
    assert episode.turns[0].observation == "That place is open.\n" + episode.observation


def test_conclusions_from_one_number_and_from_two() -> None:
    # 3 x 3, two rows open, 1 2 1 over an unknown row: each 1 has two unknown places, the 2 has all three, so the third
    # place that a 1 does not have holds a mine; both corners do, and the place between them is safe.
    view = (0, 0, 0, 1, 2, 1, UNKNOWN, UNKNOWN, UNKNOWN)
    assert conclusions(view, 3) == ({7}, {6, 8})
    assert conclusions((1, *[UNKNOWN] * 8), 3) == (set(), set())
    assert conclusions((3, *[UNKNOWN] * 8), 3) == (set(), {1, 3, 4})


@settings(max_examples=30)
@given(st.sets(st.integers(0, 8), max_size=4), st.integers(0, 8))
def test_conclusions_hold_on_every_board_that_looks_like_this(mines: set[int], place: int) -> None:
    if place in mines:
        return
    view = open_cells((UNKNOWN,) * 9, frozenset(mines), place, 3)
    boards = [
        set(other)
        for count in range(9)
        for other in itertools.combinations([at for at in range(9) if view[at] == UNKNOWN], count)
        if all(seen in (UNKNOWN, len(set(other) & set(neighbors_of(3)[at]))) for at, seen in enumerate(view))
    ]
    safe, certain = conclusions(view, 3)
    assert mines in boards
    assert all(not safe & board and certain <= board for board in boards)


@pytest.mark.parametrize("kwargs", [{}, {"size": 5, "mines": 5}, {"size": 9, "mines": 12}])
def test_oracle_clears_every_board_by_conclusions_alone(kwargs: dict[str, int]) -> None:
    env = Minesweeper(turn_reward=True, max_turns=150, **kwargs)
    for index in range(4):
        env.reset(options={"task": env.tasks.task(Split.TEST, index)})
        total, is_over = 0.0, False
        while not is_over:
            safe, _ = conclusions(env.state.view, env.state.size)
            assert safe
            result = env.step(env.oracle())
            total, is_over = total + result.reward, result.terminated
        assert total == pytest.approx(1.0)


def test_fork_goes_its_own_way() -> None:
    _, own = step_after_fork(Minesweeper(), task_of(*BOARD), "open 4 2", "flag 4 2")
    assert own.observation.split("\n")[3] == "#F###"
