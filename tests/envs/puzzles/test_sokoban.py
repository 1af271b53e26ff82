"""`puzzles/sokoban-v0`: every room can be solved, in as many pushes as its task says, and boxes move as they should."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._grids import MOVES
from envgym.envs.puzzles._sokoban import all_pulls, apply_move, key_of, pulls, read_board, write_board
from envgym.envs.puzzles.sokoban import MAX_PLAN, Sokoban
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

ROOM = ("######", "#@-#-#", "#$---#", "#-$-.#", "#.---#", "######")


TestSokoban = conformance("puzzles/sokoban-v0", num_tasks=6)
TestSokobanPaidByTurn = conformance("puzzles/sokoban-v0", num_tasks=2, size=6, turn_reward=True)


def task_of(*rows: str) -> Task:
    return Task(id="t", prompt="", payload={"board": list(rows)}, split=Split.TRAIN)


def test_hand_played_room_pays_each_box_on_its_goal_by_turn() -> None:
    # Two boxes, none on a goal: the first on a goal pays 0.5 / 2, the end what is left to 1.
    env = Sokoban(turn_reward=True)
    episode = play_actions(env, task_of(*ROOM), "down", "down", "up, right, down", "left, down, right, right")
    assert [turn.observation.split("\n") for turn in episode.turns[:2]] == [
        ["######", "#--#-#", "#@---#", "#$$-.#", "#.---#", "######", "Moves left: 59."],
        ["######", "#--#-#", "#----#", "#@$-.#", "#*---#", "######", "Moves left: 58."],
    ]
    assert episode.turns[2].observation.startswith("######\n#--#-#\n#----#\n#-@-.#\n#*$--#")
    assert rewards_of(episode) == [0.0, 0.25, 0.0, 0.0]


def test_last_box_on_its_goal_ends_the_episode_with_reward_1() -> None:
    episode = play_actions(Sokoban(), task_of(*ROOM), "down down right right")
    assert (episode.turns[0].observation, episode.ending) == ("Solved: every box is on a goal.", Ending.TERMINATED)
    assert episode.reward == 1.0


def test_what_cannot_be_pushed_stays_and_costs_a_move() -> None:
    # A box before a wall, a box before a box, a wall.
    rows = ("######", "#$@$.#", "#---.#", "#----#", "#----#", "######")
    env = Sokoban()
    episode = play_actions(env, task_of(*rows), "left", "up", "right")
    shown = "\n".join(rows)
    assert [turn.observation for turn in episode.turns[:2]] == [f"{shown}\nMoves left: {left}." for left in (59, 58)]
    assert episode.turns[2].observation.startswith("######\n#$-@*#")
    room, player, boxes = read_board(("#####", "#@$$#", "#-..#", "#---#", "#####"))
    assert apply_move(room, player, boxes, 1) == (player, boxes)


def test_out_of_moves_ends_the_episode() -> None:
    episode = play_actions(Sokoban(), task_of(*ROOM), *["right left " * 5] * 6)
    assert (episode.turns[-1].observation, episode.reward) == ("No moves left.", 0.0)
    assert episode.ending is Ending.TERMINATED


@pytest.mark.parametrize("words", ["", "go", "up up up up up up up up up up up", "up\u200b"])
def test_what_are_no_moves_is_answered_and_moves_nothing(words: str) -> None:
    episode = play_actions(Sokoban(), task_of(*ROOM), words)
    assert episode.turns[0].observation.split("\n")[0] == "Say up, down, left or right, or up to 10 of these words."
    assert episode.turns[0].observation.endswith("Moves left: 60.")


def test_number_of_pushes_is_that_of_a_search_forwards() -> None:
    rows = ("######", "#--.-#", "#-#$-#", "#-$--#", "#@-.-#", "######")
    room, player, boxes = read_board(rows)
    # Forwards over (player, boxes), moves without a push at no cost.
    pushes, queue = {(player, boxes): 0}, deque([(player, boxes)])
    while queue:
        at, now = queue.popleft()
        for step in room.steps:
            state = apply_move(room, at, now, step)
            cost = pushes[at, now] + (state[1] != now)
            if cost < pushes.get(state, 10**6):
                pushes[state] = cost
                (queue.append if state[1] != now else queue.appendleft)(state)
    solvable = all_pulls(room)
    fewest = min(cost for (_, now), cost in pushes.items() if now == room.goals)
    assert solvable[key_of(room, player, boxes)][0] == fewest
    assert dict(solvable) == pulls(room)
    assert set(pulls(room, 5)) < set(solvable)


@pytest.mark.parametrize("kwargs", [{"size": 6, "boxes": 1}, {}, {"size": 8, "boxes": 3}])
def test_oracle_solves_every_room_in_the_pushes_and_moves_that_its_task_says(kwargs: dict[str, int]) -> None:
    env = Sokoban(max_turns=40, turn_reward=False, **kwargs)
    for index in range(4):
        task = env.tasks.task(Split.TRAIN, index)
        episode = play(env, oracle_of(env), seed=0, task=task)
        num_moves = sum(len(action.split()) for action in episode.actions)
        assert episode.reward == 1.0
        assert (num_moves, num_moves <= MAX_PLAN) == (task.metadata["moves"], True)
        pushes = task.metadata["pushes"]
        assert isinstance(pushes, int)
        assert len(episode.turns) >= pushes > env.boxes


def test_oracle_finds_another_way_after_a_detour_and_says_a_move_at_a_dead_end() -> None:
    env = Sokoban()
    env.reset(options={"task": task_of(*ROOM)})
    env.step("right down")  # pushes nothing: the box is at the left
    while not (result := env.step(env.oracle())).terminated:
        pass
    assert result.reward == 1.0
    env.reset(options={"task": task_of("#####", "#$--#", "#@-.#", "#---#", "#####")})
    assert env.oracle() in MOVES  # the box is in a corner


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), max_size=30))
def test_boxes_and_walls_are_kept_whatever_is_done(seed: int, moves: list[int]) -> None:
    env = Sokoban(size=6)
    env.reset(seed=seed)
    room, player, boxes = env.state.room, env.state.player, env.state.boxes
    for move in moves:
        player, boxes = apply_move(room, player, boxes, room.steps[move])
        assert boxes.bit_count() == 2
        assert player.bit_count() == 1
        assert (player | boxes) & ~room.floor == 0
        assert player & boxes == 0
    assert read_board(write_board(room, player, boxes)) == (room, player, boxes)


def test_moves_without_looking_earn_at_most_the_declared_chance() -> None:
    env, draw = Sokoban(), np.random.default_rng(0)
    tasks = [env.tasks.task(Split.TRAIN, index) for index in range(20)]
    script = [" ".join(MOVES[move] for move in draw.integers(4, size=10)) for _ in range(6)]
    mean = sum(play_actions(env, task, *script).reward for task in tasks) / 20
    assert mean <= env.chance_score + 0.15, "three errors"


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(Sokoban(), task_of(*ROOM), "down down right right", "right")
    assert twin.reward == 1.0
    assert own.observation.startswith("######\n#-@#-#")
