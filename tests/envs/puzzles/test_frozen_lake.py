"""`puzzles/frozen_lake-v0`: every lake can be crossed however it slips, and one who does not look meets a hole."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._grids import MOVES, canonical_rows, turned
from envgym.envs.puzzles._rewards import TURN_SHARE
from envgym.envs.puzzles.frozen_lake import AGENT, GOAL, HOLE, ICE, FrozenLake, survey
from tests.envs.episodes import conformance, rewards_of, step_after_fork

LAKE = ("A.O", "...", "O.G")


TestFrozenLake = conformance("puzzles/frozen_lake-v0", num_tasks=8)
TestFrozenLakeSlipperyPaidByTurn = conformance("puzzles/frozen_lake-v0", num_tasks=2, size=3, slips=1, turn_reward=True)


def task_of(*rows: str) -> Task:
    return Task(id="t", prompt="", payload={"board": list(rows)}, split=Split.TRAIN)


def say(env: FrozenLake, task: Task, *words: str, seed: int = 0) -> ObservedEpisode:
    return play(env, lambda turn, _: words[turn], seed=seed, task=task, max_turns=len(words))


def test_hand_played_lake() -> None:
    episode = say(FrozenLake(), task_of(*LAKE), "left", "down", "Right", "<answer>right</answer>", "down")
    assert [turn.observation for turn in episode.turns] == [
        "A.O\n...\nO.G",  # against the edge nothing moves
        "..O\nA..\nO.G",
        "..O\n.A.\nO.G",
        "..O\n..A\nO.G",
        "You reached the goal.",
    ]
    assert (episode.reward, episode.ending) == (1.0, Ending.TERMINATED)


def test_a_hole_ends_the_episode_without_reward() -> None:
    episode = say(FrozenLake(), task_of(*LAKE), "right", "right")
    assert (episode.turns[-1].observation, episode.reward) == ("You fell into a hole.", 0.0)
    assert episode.ending is Ending.TERMINATED


def test_turn_rewards_pay_each_new_nearest_place_and_the_goal_the_rest() -> None:
    env = FrozenLake(turn_reward=True)
    # The goal is 4 moves away: each move nearer pays 0.5 / 4, going back and forth nothing, the goal 1 - 3 x 0.125.
    episode = say(env, task_of(*LAKE), "down", "up", "down", "right", "right", "down")
    assert rewards_of(episode) == pytest.approx([0.125, 0.0, 0.0, 0.125, 0.125, 0.625])
    fallen = say(env, task_of(*LAKE), "down", "down")
    assert fallen.reward == pytest.approx(0.125)


def test_what_is_no_move_is_answered_and_moves_nothing() -> None:
    episode = say(FrozenLake(), task_of(*LAKE), "jump", "up down", "")
    assert {turn.observation for turn in episode.turns} == {"Say up, down, left or right.\nA.O\n...\nO.G"}


def test_survey_counts_moves_at_worst() -> None:
    # A 3 x 3 lake, places 0 to 8, the goal at 8, the hole at 4. Without slips the opposite corner is 4 moves away.
    # With a slip left 5 is lost, once entered: down or up may slip left into the hole, left goes there, and right,
    # against the edge, stays without using the slip up for sure. The same holds for 7, so the goal can be missed.
    calm, slippery = survey(3, (8, 4), 1)[:, 0]
    assert calm.tolist() == [4, 3, 2, 3, np.inf, 1, 2, 1, 0]
    assert [place for place in range(9) if np.isfinite(slippery[place])] == [8]


def test_slips_go_to_both_sides_of_one_move_in_three() -> None:
    env = FrozenLake(size=5, holes=1, slips=5, max_turns=None)
    rows = ("O....", ".....", "..A..", ".....", "....G")
    after: list[str] = []
    for seed in range(99):
        episode = say(env, task_of(*rows), "up", seed=seed)
        after.append(episode.turns[0].observation)
    up, left, right = (
        sum(text.split("\n")[row][column] == AGENT for text in after) for row, column in ((1, 2), (2, 1), (2, 3))
    )
    assert up + left + right == 99
    assert abs(up - 66) < 5 * (99 * 2 / 9) ** 0.5  # five standard errors of a coin of 2/3
    assert abs(left - 16.5) < 5 * (99 * 5 / 36) ** 0.5
    assert sum("Slips left: 4." in text for text in after) == left + right


@pytest.mark.parametrize("kwargs", [{"size": 3}, {"size": 6}, {"slips": 2}, {"size": 5, "slips": 3, "holes": 2}])
def test_oracle_crosses_every_lake_within_the_moves_that_it_needs_at_worst(kwargs: dict[str, int]) -> None:
    env = FrozenLake(max_turns=30, turn_reward=False, **kwargs)
    for index in range(10):
        task = env.tasks.task(Split.TRAIN, index)
        for seed in range(3):
            episode = play(env, oracle_of(env), seed=seed, task=task)
            moves = task.metadata["moves"]
            assert isinstance(moves, int)
            assert episode.reward == 1.0
            assert 2 <= len(episode.turns) <= moves <= 30


@settings(max_examples=20)
@given(st.lists(st.sampled_from(MOVES), min_size=1, max_size=12), st.integers(0, 20))
def test_any_walk_pays_between_0_and_1_and_1_only_at_the_goal(words: list[str], index: int) -> None:
    env = FrozenLake(turn_reward=True)
    env.reset(seed=0, options={"split": "train", "index": index})
    total = 0.0
    for word in words:
        result = env.step(word)
        total += result.reward
        assert result.reward >= 0.0
        if result.terminated:
            break
    is_goal = result.observation == "You reached the goal."
    assert total == pytest.approx(1.0) if is_goal else total <= TURN_SHARE


def test_every_special_place_could_be_the_goal_so_blind_walks_meet_it_as_often_as_each_hole() -> None:
    # 1 goal and 4 holes: 1 / 5 exactly, for a walk that meets one of them; 200 lakes, five standard errors.
    env = FrozenLake()
    tour = [*itertools.chain.from_iterable([["right"] * 3, ["down"], ["left"] * 3, ["down"]] * 2), *["up"] * 3] * 2
    met = [say(env, env.tasks.task(Split.TRAIN, index), *tour[:30]) for index in range(200)]
    ended = [episode for episode in met if episode.ending is Ending.TERMINATED]
    hits = sum(episode.reward for episode in ended)
    assert env.chance_score == pytest.approx(0.2)
    assert len(ended) > 150
    assert abs(hits - 0.2 * len(ended)) < 5 * (len(ended) * 0.2 * 0.8) ** 0.5


@given(st.integers(0, 7), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_the_same_lake_turned_or_mirrored_is_the_same_task(symmetry: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = tuple("".join(draw.choice(list(ICE + HOLE + GOAL + AGENT), 4)) for _ in range(4))
    board, shown = canonical_rows(turned(rows, symmetry))
    assert board == canonical_rows(rows)[0]
    assert turned(board, shown) == turned(rows, symmetry)
    assert len({turned(("AO", ".G"), number) for number in range(8)}) == 8


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(FrozenLake(), task_of(*LAKE), "down", "right")
    assert twin.observation == "..O\nA..\nO.G"
    assert own.observation == ".AO\n...\nO.G"
