"""`puzzles/wordle-v0`: marks are those of the game, every word can be found, the list is read without its package."""

import importlib.util
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envgym
from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

pytest.importorskip("reasoning_gym")

from envgym.envs.puzzles import _wordle, wordle
from envgym.envs.puzzles._wordle import encode_words, load_words, mark_letters, number_marks
from envgym.envs.puzzles.wordle import Wordle

words = st.text(alphabet="abc", min_size=5, max_size=5)


TestWordle = conformance("puzzles/wordle-v0", num_tasks=6)


def task_of(word: str) -> Task:
    return Task(id="t", prompt="Find it.", payload={"word": word}, split=Split.TRAIN)


def say(env: Wordle, word: str, *guesses: str) -> ObservedEpisode:
    return play_actions(env, task_of(word), *guesses)


@pytest.mark.parametrize(
    "word, guess, marks",
    [
        ("smart", "smart", "GGGGG"),
        ("smart", "crane", "-YG--"),
        ("abbey", "babes", "YYGG-"),  # both Bs are in the word, one in its place
        ("crane", "error", "YG---"),  # one R in the word, in its place: the other two are too many
        ("level", "eerie", "YG---"),  # the second E is in its place, one more E is elsewhere, the third is too many
    ],
)
def test_marks_by_hand(word: str, guess: str, marks: str) -> None:
    assert mark_letters(word, guess) == marks


@given(words, words)
def test_marks_of_all_words_at_once_agree_with_those_of_one(word: str, guess: str) -> None:
    marks = mark_letters(word, guess)
    number = int("".join(str("-YG".index(mark)) for mark in marks), 3)
    assert number_marks(encode_words((word,)), encode_words((guess,))[0]).tolist() == [number]
    assert marks.count("G") == sum(a == b for a, b in zip(word, guess, strict=True))
    assert 5 - marks.count("-") == sum(min(word.count(letter), guess.count(letter)) for letter in "abc")


def test_hand_played_game_pays_new_letters_in_their_places() -> None:
    # crane against smart: A, 0.1. start: S, A, R?, no: S at 1, T and A, R at 4 and T at 5: S A R T, three more letters.
    episode = say(Wordle(turn_reward=True), "smart", "C R A N E", "start", "<answer>smart</answer>")
    assert [turn.observation for turn in episode.turns] == [
        "C R A N E\n- Y G - -\nGuesses left: 5.",
        "S T A R T\nG - G G G\nGuesses left: 4.",
        "Correct.",
    ]
    assert rewards_of(episode) == pytest.approx([0.1, 0.3, 0.6])
    assert episode.ending is Ending.TERMINATED


def test_last_wrong_guess_ends_the_game_and_tells_the_word() -> None:
    episode = say(Wordle(guesses=1), "smart", "crane")
    assert (episode.turns[-1].observation, episode.reward) == ("The word was SMART.", 0.0)
    assert episode.ending is Ending.TERMINATED


@pytest.mark.parametrize("guess", ["", "crates", "cran", "cr4ne", "crâne", "two words"])
def test_what_is_no_word_of_five_letters_costs_no_guess(guess: str) -> None:
    episode = say(Wordle(), "smart", guess, "crane")
    assert episode.turns[0].observation == "Say one English word of five letters."
    assert episode.turns[1].observation.endswith("Guesses left: 5.")


def test_a_word_that_is_not_in_the_list_is_refused_unless_any_letters_may_be_guessed() -> None:
    refused = say(Wordle(), "smart", "zzzzz").turns[0].observation
    assert refused == "ZZZZZ is not in the word list. Say one English word of five letters."
    assert say(Wordle(only_words=False), "smart", "zzzzz").turns[0].observation.endswith("Guesses left: 5.")


def test_oracle_finds_every_word_in_6_guesses() -> None:
    env = Wordle()
    for split in Split:
        for index in range(6):
            episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, index))
            assert episode.reward == 1.0
            assert len(episode.turns) <= 6


def test_lists_hold_common_words_only_of_five_letters_and_each_word_once() -> None:
    lists = load_words()
    assert {len(word) for word in lists.allowed} == {5}
    assert set(lists.hidden) < lists.allowed
    assert len(set(lists.hidden)) == len(lists.hidden) > 2000
    assert {"crane", "smart", "house"} <= set(lists.hidden)
    sizes = [Wordle().tasks.size(split) for split in Split]
    assert sum(size for size in sizes if size is not None) == len(lists.hidden)


def test_the_package_of_the_list_is_not_imported() -> None:
    code = "import sys, envgym; envgym.make('puzzles/wordle-v0'); print('reasoning_gym' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_a_missing_list_is_one_sentence_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wordle, "find_spec", lambda name: None)
    load_words.cache_clear()
    wordle._all_tasks.cache_clear()
    with pytest.raises(InvalidInput, match=r"no reasoning_gym .*; pip install 'envgym\[puzzles\]'\."):
        envgym.make("puzzles/wordle-v0")
    monkeypatch.setattr(_wordle, "find_spec", importlib.util.find_spec)


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["crane", "smart", "start", "house"]), min_size=1, max_size=6))
def test_any_play_pays_between_0_and_1_and_1_only_for_the_word(guesses: list[str]) -> None:
    env = Wordle(turn_reward=True)
    env.reset(options={"task": task_of("smart")})
    total = 0.0
    for guess in guesses:
        result = env.step(guess)
        assert result.reward >= 0.0
        total += result.reward
        if result.terminated:
            break
    assert total == pytest.approx(1.0) if "smart" in guesses else total <= 0.4


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(Wordle(), task_of("smart"), "smart", "crane")
    assert twin.reward == 1.0
    assert own.observation.endswith("Guesses left: 5.")
