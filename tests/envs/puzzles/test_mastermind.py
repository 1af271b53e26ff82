"""`puzzles/mastermind-v0`: hints are those of the game, the oracle finds every code, chance is exact."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles.mastermind import LETTERS, Mastermind, all_codes, judge, number_hints
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

codes = st.text(alphabet="ABCDEF", min_size=4, max_size=4)


TestMastermind = conformance("puzzles/mastermind-v0", num_tasks=6)
TestMastermindWithoutRepeatsPaidByTurn = conformance(
    "puzzles/mastermind-v0", num_tasks=2, length=3, colors=7, repeats=False, turn_reward=True
)


def task_of(code: str) -> Task:
    return Task(id="t", prompt="Find it.", payload={"code": code, "colors": 6}, split=Split.TRAIN)


def say(env: Mastermind, code: str, *guesses: str) -> ObservedEpisode:
    return play_actions(env, task_of(code), *guesses)


@pytest.mark.parametrize(
    "code, guess, hint",
    [
        ("ABCD", "ABCD", (4, 0)),
        ("ABCD", "DCBA", (0, 4)),
        ("ABCD", "EEFF", (0, 0)),
        ("AABB", "ABAA", (1, 2)),  # A in its place; B elsewhere; one more A, as the code has two
        ("AABC", "AAAA", (2, 0)),
        ("ABCC", "CCAB", (0, 4)),
    ],
)
def test_hints_by_hand(code: str, guess: str, hint: tuple[int, int]) -> None:
    assert judge(code, guess) == hint


@given(codes, codes)
def test_hints_are_symmetric_and_all_codes_at_once_agree_with_one(code: str, guess: str) -> None:
    right, near = judge(code, guess)
    assert (right, near) == judge(guess, code)
    assert right + near <= 4
    assert (right == 4) == (code == guess)
    code_row, guess_row = (np.array([LETTERS.index(letter) for letter in text]) for text in (code, guess))
    assert number_hints(code_row[None], guess_row, 6).tolist() == [8 * right + near]


def test_hand_played_game_pays_new_right_places() -> None:
    env = Mastermind(turn_reward=True)
    # AABB against CADD: 1 in place, 0.5 / 4. Against AACC: 2, one more. ABAB: 2 again. The code pays 1 - 0.25.
    episode = say(env, "AABB", "CADD", "a, a, c, c", "<answer>A B A B</answer>", "AABB")
    assert [turn.observation for turn in episode.turns] == [
        "Right place: 1. Right color, wrong place: 0. Guesses left: 9.",
        "Right place: 2. Right color, wrong place: 0. Guesses left: 8.",
        "Right place: 2. Right color, wrong place: 2. Guesses left: 7.",
        "Correct.",
    ]
    assert rewards_of(episode) == [0.125, 0.125, 0.0, 0.75]
    assert episode.ending is Ending.TERMINATED


def test_last_wrong_guess_ends_the_game_and_tells_the_code() -> None:
    episode = say(Mastermind(guesses=2), "AABB", "CCCC", "DDDD")
    assert (episode.turns[-1].observation, episode.reward) == ("The code was A A B B.", 0.0)
    assert episode.ending is Ending.TERMINATED


@pytest.mark.parametrize("words", ["", "ABC", "ABCDE", "ABCG", "1 2 3 4", "ÀBCD"])
def test_what_is_no_guess_costs_no_guess(words: str) -> None:
    episode = say(Mastermind(), "AABB", words, "CCCC")
    assert episode.turns[0].observation == "Say 4 of the colors A B C D E F, such as A B C D."
    assert episode.turns[1].observation.endswith("Guesses left: 9.")


def test_without_repeats_a_guess_with_one_is_refused_and_no_code_has_one() -> None:
    env = Mastermind(repeats=False)
    assert say(env, "ABCD", "AABC").turns[0].observation.startswith("Each color may be there once.")
    drawn = [str(env.tasks.task(Split.TRAIN, index).payload["code"]) for index in range(50)]
    assert {len(set(code)) for code in drawn} == {4}
    assert len(all_codes(4, 6, False)) == 6 * 5 * 4 * 3


def test_oracle_needs_at_most_7_guesses_and_says_the_code_last() -> None:
    env = Mastermind()
    turns = []
    for index in range(12):
        episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(Split.TRAIN, index))
        assert episode.reward == 1.0
        turns.append(len(episode.turns))
    assert max(turns) <= 7
    env = Mastermind(guesses=1)
    env.reset(options={"task": task_of("FEFE")})
    assert env.step(env.oracle()).reward == 1.0


def test_no_list_of_guesses_beats_the_declared_chance() -> None:
    # 2 places, 3 colors, 9 codes: any 2 different guesses find 2 of 9 codes.
    env = Mastermind(length=2, colors=3, guesses=2)
    names = ["".join(code) for code in itertools.product("ABC", repeat=2)]
    best = max(
        sum(say(env, code, *guesses).reward for code in names if code in guesses) / 9
        for guesses in itertools.combinations(names, 2)
    )
    assert env.chance_score == pytest.approx(best) == pytest.approx(2 / 9)


@settings(max_examples=20)
@given(st.lists(codes, min_size=1, max_size=10), codes)
def test_any_play_pays_between_0_and_1_and_1_only_for_the_code(guesses: list[str], code: str) -> None:
    env = Mastermind(turn_reward=True)
    env.reset(options={"task": task_of(code)})
    total = 0.0
    for guess in guesses:
        result = env.step(guess)
        assert result.reward >= 0.0
        total += result.reward
        if result.terminated:
            break
    assert total == pytest.approx(1.0) if code in guesses else total <= 0.375


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(Mastermind(), task_of("AABB"), "AABB", "CCCC")
    assert twin.reward == 1.0
    assert own.observation == "Right place: 0. Right color, wrong place: 0. Guesses left: 9."
