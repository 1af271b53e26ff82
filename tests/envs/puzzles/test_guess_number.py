"""`puzzles/guess_number-v0`: bisection finds the number, the turns' rewards add up, chance is what it is said to be."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.messages import Action, ToolCall
from envgym.core.tasks import Split, Task, distinct_tasks
from envgym.core.turns import Ending
from envgym.envs.puzzles._rewards import TURN_SHARE
from envgym.envs.puzzles.guess_number import GuessNumber, GuessNumberState, chance_score
from envgym.parsing import tool_call_action
from tests.envs.episodes import conformance, rewards_of

TestGuessNumber = conformance("puzzles/guess_number-v0")
TestGuessNumberPaidByTurn = conformance("puzzles/guess_number-v0", turn_reward=True, size=64, slack=0)


def task_of(low: int, high: int, secret: int, guesses: int) -> Task:
    payload = {"low": low, "high": high, "secret": secret, "guesses": guesses}
    return Task(id="t", prompt="Find it.", payload=payload, split=Split.TRAIN)


def guess(env: GuessNumber, task: Task, *numbers: int) -> ObservedEpisode:
    return play(
        env, lambda turn, _: tool_call_action("guess", number=numbers[turn]), seed=0, task=task, max_turns=len(numbers)
    )


@pytest.mark.parametrize("turn_reward", [False, True])
@pytest.mark.parametrize("split", Split)
def test_oracle_solves_200_tasks_of_each_split_within_the_bisection_bound(split: Split, turn_reward: bool) -> None:
    env = GuessNumber(turn_reward=turn_reward)
    episodes = [play(env, oracle_of(env), seed=0, task=task) for task in distinct_tasks(env.tasks, split, 200)]
    assert [round(episode.reward, 12) for episode in episodes] == [1.0] * 200
    assert max(len(episode.turns) for episode in episodes) <= 7  # 2^6 <= 100 < 2^7


@given(st.integers(2, 300), st.data())
def test_bisection_never_needs_more_guesses_than_are_given_without_slack(size: int, data: st.DataObject) -> None:
    env = GuessNumber(size=size, slack=0)
    secret = data.draw(st.integers(11, 10 + size))
    episode = play(env, oracle_of(env), seed=0, task=task_of(11, 10 + size, secret, env.guesses))
    assert episode.reward == 1.0


def test_hand_played_game() -> None:
    env = GuessNumber()
    episode = guess(env, task_of(1, 100, 37, 10), 50, 25, 37)
    assert [turn.observation for turn in episode.turns] == [
        "Lower. Guesses left: 9.",
        "Higher. Guesses left: 8.",
        "Correct.",
    ]
    assert rewards_of(episode) == [0.0, 0.0, 1.0]
    assert episode.ending is Ending.TERMINATED


def test_turn_rewards_pay_halvings_and_the_find_pays_the_rest() -> None:
    env = GuessNumber(turn_reward=True)
    # 100 numbers, K = floor(log2 100) = 6 halvings at most, each worth 0.5 / 6.
    # 50: 49 of 100 left, pays. 60: nothing new. 10: 39 of 49 left, too many. 30: 19 of 39 left, pays. 37: found.
    episode = guess(env, task_of(1, 100, 37, 10), 50, 60, 10, 30, 37)
    assert rewards_of(episode) == pytest.approx([1 / 12, 0.0, 0.0, 1 / 12, 1 - 2 / 12])


def test_narrowing_down_without_the_find_pays_at_most_the_turn_share() -> None:
    env = GuessNumber(turn_reward=True, slack=0)
    # 1..8 holds 8 = 2^3 numbers: 4 leaves 4, 6 leaves 2, 7 leaves 1 number: all three halvings, but 8 is never said.
    episode = guess(env, task_of(1, 8, 8, 3), 4, 6, 7)
    assert episode.reward == pytest.approx(TURN_SHARE)
    assert episode.turns[-1].observation == "Higher. The number was 8."


@given(st.lists(st.integers(-5, 70), min_size=1, max_size=12), st.integers(1, 64))
def test_any_play_pays_between_0_and_1_and_1_only_for_the_find(numbers: list[int], secret: int) -> None:
    env = GuessNumber(turn_reward=True)
    task = task_of(1, 64, secret, 12)
    actions = iter(numbers)
    env.reset(options={"task": task})
    total = 0.0
    for number in actions:
        result = env.step(tool_call_action("guess", number=number))
        total += result.reward
        assert result.reward >= 0.0
        if result.terminated:
            break
    assert total == pytest.approx(1.0) if secret in numbers else total <= TURN_SHARE


def test_a_guess_outside_the_range_is_a_guess() -> None:
    env = GuessNumber()
    episode = guess(env, task_of(1, 100, 37, 10), 500, -3)
    assert [turn.observation for turn in episode.turns] == ["Lower. Guesses left: 9.", "Higher. Guesses left: 8."]


def test_several_guesses_in_one_message_count_one_by_one() -> None:
    env = GuessNumber()
    env.reset(options={"task": task_of(1, 100, 37, 4)})
    calls = [ToolCall(name="guess", arguments={"number": number}) for number in (1, 2, 3, 4, 37)]
    result = env.step(Action("", content="", tool_calls=calls))
    assert result.observation.splitlines()[3:] == ["Higher. The number was 37.", "The game is over."]
    assert (result.reward, result.terminated) == (0.0, True)


def test_a_message_without_a_guess_gives_up() -> None:
    env = GuessNumber(turn_reward=True)
    env.reset(options={"task": task_of(1, 100, 37, 10)})
    first = env.step(tool_call_action("guess", number=50))
    last = env.step("I give up.")
    assert first.reward == pytest.approx(1 / 12)
    assert (last.reward, last.terminated) == (0.0, True)


def test_fork_goes_its_own_way() -> None:
    env = GuessNumber()
    env.reset(options={"task": task_of(1, 100, 37, 10)})
    env.step(tool_call_action("guess", number=50))
    twin = env.fork()
    assert twin.step(tool_call_action("guess", number=37)).reward == 1.0
    assert env.step(tool_call_action("guess", number=36)).observation == "Higher. Guesses left: 8."
    assert twin.state.is_guessed
    assert not env.state.is_guessed


@pytest.mark.parametrize("size, guesses", [(4, 1), (4, 2), (6, 2), (8, 2), (8, 3)])
def test_no_fixed_list_of_guesses_beats_the_declared_chance(size: int, guesses: int) -> None:
    best = {False: 0.0, True: 0.0}
    for numbers in itertools.permutations(range(1, size + 1), guesses):
        for turn_reward in (False, True):
            rewards = [_worth(numbers, size, secret, turn_reward) for secret in range(1, size + 1)]
            best[turn_reward] = max(best[turn_reward], sum(rewards) / size)
    assert best[False] == pytest.approx(chance_score(size, guesses, 0.0))
    assert best[True] <= chance_score(size, guesses, TURN_SHARE)


def _worth(numbers: tuple[int, ...], size: int, secret: int, turn_reward: bool) -> float:
    game = GuessNumberState()
    game.reset(1, size, secret, len(numbers))
    for number in numbers:
        if not game.is_over:
            game.guess(number)
    return max(game.score(), TURN_SHARE * game.progress * turn_reward)


def test_random_guesser_meets_the_exact_chance() -> None:
    # 10 different guesses among 100 numbers hit with probability 10/100; 2000 games, five standard errors.
    env, rng = GuessNumber(), np.random.default_rng(0)
    assert env.chance_score == pytest.approx(0.1)
    hits = sum(_worth(tuple(rng.permutation(100)[:10] + 1), 100, int(rng.integers(1, 101)), False) for _ in range(2000))
    assert abs(hits / 2000 - 0.1) < 5 * (0.1 * 0.9 / 2000) ** 0.5
