"""`puzzles/textarena-v0`: every game repeats, forks agree, oracles win; global dice and faults stay out."""

import random
import socket
import sys
from threading import Thread

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.env import NoOracle
from envgym.envs.puzzles._textarena import TextArenaGame, move_of
from envgym.envs.puzzles._textarena_games import GAMES
from envgym.envs.puzzles._textarena_oracles import ORACLES
from envgym.envs.puzzles.textarena import TextArena
from envgym.errors import InvalidInput
from envgym.seeds import generator
from tests.envs.episodes import conformance

pytest.importorskip("textarena")

MOVES = ("up", "left", "down", "right", "hit", "stand", "accept", "continue", "1", "0 1", "2 2", "3 4", "1 2 3 4", "7")
"""Moves of many games; what is none in a game is answered."""


TestTextArena = conformance("puzzles/textarena-v0", num_tasks=8)
# A game that throws dice at every turn, and has no oracle.
TestTextArenaWithDice = conformance("puzzles/textarena-v0", num_tasks=4, game="2048-v0-easy", partial_credit=True)


def strolled(game: TextArenaGame, seed: int, turns: int = 12) -> list[str]:
    """Make moves drawn by `seed`; return all that is said."""
    draw, told = generator("stroll", seed), []
    for _ in range(turns):
        if game.is_over:
            break
        game.play(f"[{MOVES[draw.integers(len(MOVES))]}]")
        told.append(game.shown())
    return told


def start(game: str, index: int = 0) -> TextArena:
    env = TextArena(game=game)
    env.reset(options={"split": "train", "index": index})
    return env


@pytest.mark.parametrize("name", GAMES)
def test_every_game_starts_offline_and_repeats_whatever_others_draw(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("a game asks the network"))
    before = random.getstate()
    first = TextArenaGame.start(name, 3)
    opening, told = first.shown(), strolled(first, 0)
    assert random.getstate() == before
    random.seed(99)
    again, other = TextArenaGame.start(name, 3), TextArenaGame.start(name, 4)
    assert again.shown() == opening
    between = [strolled(other, seed, turns=2) for seed in range(2)]
    assert strolled(again, 0) == told
    assert between


@pytest.mark.parametrize("name", GAMES)
def test_a_copy_goes_on_as_the_game_does_and_changes_nothing_in_it(name: str) -> None:
    game = TextArenaGame.start(name, 5)
    strolled(game, 1, turns=2)
    for seed in range(3):
        copy, twin = game.copy(), game.copy()
        assert strolled(copy, seed) == strolled(twin, seed)
    expected = strolled(game.copy(), 7)
    assert strolled(game, 7) == expected


@pytest.mark.parametrize("name", [name for name in GAMES if name.partition("-")[0] in ORACLES])
def test_oracle_wins_on_both_sides_of_the_split(name: str) -> None:
    env = TextArena(game=name)
    tasks = [env.tasks.task(split, 0) for split in Split]
    assert [play(env, oracle_of(env), seed=0, task=task, max_turns=100).reward for task in tasks] == [1.0] * 2
    assert tasks[0].key != tasks[1].key


def test_games_in_two_threads_have_their_own_dice() -> None:
    expected = [strolled(TextArenaGame.start("2048-v0-easy", seed), seed, turns=30) for seed in range(2)]
    told: dict[int, list[str]] = {}

    def run(seed: int) -> None:
        told[seed] = strolled(TextArenaGame.start("2048-v0-easy", seed), seed, turns=30)

    threads = [Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told[0], told[1]] == expected


def test_others_may_use_the_package_beside_us(capsys: pytest.CaptureFixture[str]) -> None:
    TextArenaGame.start("LogicPuzzle-v0", 0)
    textarena = sys.modules["textarena"]
    theirs = textarena.make("LogicPuzzle-v0-raw")
    theirs.reset(num_players=1, seed=11)
    random.seed(11)
    assert theirs.clues == random.choice(theirs.game_board_data)["clue"]
    theirs.step("[nobody nothing X]")
    assert "Correct:" in capsys.readouterr().out
    ours = TextArenaGame.start("LogicPuzzle-v0", 0)
    ours.play("[nobody nothing X]")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text, move",
    [
        ("[3 2]", "[3 2]"),
        ("I open [1 1], no, [ 3   2 ].", "[3 2]"),
        ("hit", "[hit]"),
        ("  ", None),
        ("[]", None),
        ("[" + "1 " * 60 + "]", None),
        ("I think that " * 20, None),
    ],
)
def test_a_move_is_what_the_last_brackets_hold(text: str, move: str | None) -> None:
    assert move_of(text) == move


def test_two_wrong_moves_in_a_row_end_a_game() -> None:
    env = start("Mastermind-v0")
    assert "invalid move" in env.step("[9 9 9 9]").observation
    assert "peg(s)" in env.step("[1 2 3 4]").observation
    env.step("[9 9 9 9]")
    result = env.step("[9 9 9 9]")
    assert (result.terminated, result.reward) == (True, 0.0)
    assert result.observation == "Invalid Move: All numbers must be between 1 and 6."


def test_partial_credit_pays_what_the_game_does() -> None:
    # Number 1 to 50; at the limit the last guess g of number n is worth 1 - |g - n| / 49.
    env = TextArena(game="GuessTheNumber-v0-hardcore", partial_credit=True)
    env.reset(options={"index": 0})
    number = env.state.inner.game_number
    guesses = [guess for guess in range(1, 51) if guess != number]
    result = env.step(f"[{guesses[0]}]")
    for guess in guesses[1:]:
        if result.terminated:
            break
        last, result = guess, env.step(f"[{guess}]")
    assert result.reward == pytest.approx(1 - abs(last - number) / 49)
    assert result.info["envgym"].reward.components["won"] == 0.0


def test_a_card_named_three_times_is_no_set() -> None:
    env = start("Set-v0")
    assert env.step("[1, 1, 1]").observation == "Name three different cards."
    assert env.state.inner.state.game_state["score"] == 0
    assert "You found a Set!" in env.step(env.oracle()).observation


def test_a_reward_that_is_no_number_is_nothing() -> None:
    env = start("ThreeCardMonte-v0")
    env.step("[9]")
    result = env.step("[9]")
    assert isinstance(env.state.inner.state.rewards[0], str)  # textarena swaps reason and reward here
    assert (result.terminated, result.reward) == (True, 0.0)


def test_a_game_without_a_limit_is_cut() -> None:
    env = TextArena(game="2048-v0-easy", max_turns=3)
    env.reset(seed=0)
    for move in ("[up]", "[left]"):
        env.step(move)
    assert env.step("[down]").info["envgym"].ending is Ending.TRUNCATED_TURNS
    with pytest.raises(NoOracle, match="oracle must know a sure way to win, got none"):
        env.oracle()


def test_task_of_another_game_or_version_is_refused() -> None:
    env = TextArena(game="LightsOut-v0")
    mine, other = env.tasks.task(Split.TRAIN, 0), TextArena(game="Sudoku-v0").tasks.task(Split.TRAIN, 0)
    changed = Task(id="x", prompt="", payload={**mine.payload, "start": []}, split=Split.TRAIN, metadata=mine.metadata)
    for task in (other, changed):
        with pytest.raises(InvalidInput, match="task must be a start of LightsOut-v0"):
            env.reset(options={"task": task})


def test_unknown_game_and_missing_package_are_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="did you mean Sudoku-v0"):
        envgym.make("puzzles/textarena-v0", game="Sudoku-v1")
    with pytest.raises(InvalidInput, match="game must be a text, got 5"):
        envgym.make("puzzles/textarena-v0", game=5)
    monkeypatch.setattr("envgym.envs.puzzles._textarena.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'envgym\[textarena\]'"):
        envgym.make("puzzles/textarena-v0")


def test_facts_are_probabilities() -> None:
    assert len({name.partition("-")[0] for name in GAMES}) >= 12
    assert all(0.0 <= facts.chance <= facts.chance_partial <= 1.0 for facts in GAMES.values())
