"""Games of a hidden code: the env that mastermind and wordle share, its state, and how the oracle guesses."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.env import Env, share_state
from envgym.envs.puzzles._rewards import TURN_SHARE, earned_so_far, end_game
from envgym.records import Reply

Codes = NDArray[np.uint8]
"""One code per row."""

GUESSES_WEIGHED, CODES_WEIGHED = 40, 400
"""How many of the possible codes are considered as a guess, and how many as the code."""


@dataclass(frozen=True, slots=True)
class GuessingState:
    """The hidden code, and what was guessed."""

    code: str
    guesses: tuple[str, ...] = ()
    best: int = 0
    """The most places that have been right in one guess."""
    paid: float = 0.0
    """Rewards of the turns so far."""

    def after(self, guess: str, num_right: int, *, turn_reward: bool) -> "GuessingState":
        """Return the state after a guess: the code earns 1, another guess earns a share with `turn_reward`."""
        best = max(num_right, self.best)
        earned = earned_so_far(guess == self.code, best / len(self.code), turn_reward=turn_reward)
        return GuessingState(self.code, (*self.guesses, guess), best, earned)


class Hint(NamedTuple):
    """The answer to a guess."""

    num_right: int
    """Places that are right."""
    text: str


class GuessingEnv(Env[GuessingState]):
    """Every well-formed message is a guess; the episode ends with the code or the last guess.

    A subclass sets the two fields, reads guesses, gives hints, and knows all codes as rows of numbers for the oracle.
    """

    guesses: int
    turn_reward: bool

    @abstractmethod
    def code_of(self, task: Task) -> str:
        """Return the hidden code of a task."""

    @abstractmethod
    def read_guess(self, action: Action) -> str | Reply:
        """Return the guess in a message, or the reply to a message that is none."""

    @abstractmethod
    def give_hint(self, code: str, guess: str) -> Hint:
        """Return the hint for a guess."""

    @abstractmethod
    def reveal(self, code: str) -> str:
        """Return the sentence that tells the code at the end."""

    @abstractmethod
    def possible_codes(self) -> Codes:
        """Return every code that a task may hide."""

    @abstractmethod
    def encode(self, code: str) -> Codes:
        """Return one code as a row of numbers."""

    @abstractmethod
    def decode(self, row: Codes) -> str:
        """Write a row of numbers as a guess."""

    @abstractmethod
    def number_hints(self, codes: Codes, guess: Codes) -> NDArray[np.int64]:
        """Return for each code the hint that `guess` would get, as one number."""

    def begin(self, task: Task) -> str:
        self.state = GuessingState(self.code_of(task))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        guess = self.read_guess(action)
        if isinstance(guess, Reply):
            return guess
        before = self.state
        hint = self.give_hint(before.code, guess)
        self.state = before.after(guess, hint.num_right, turn_reward=self.turn_reward)
        reward, is_found = self.state.paid - before.paid, guess == before.code
        left = self.guesses - len(self.state.guesses)
        if left and not is_found:
            return Reply(observation=f"{hint.text}Guesses left: {left}.", reward=reward)
        text = "Correct." if is_found else self.reveal(before.code)
        return end_game(text, reward, found=is_found)

    def oracle(self) -> str:
        """Guess a code that agrees with all hints and leaves few others at worst; the last guess is the code itself."""
        code = self.encode(self.state.code)
        if len(self.state.guesses) == self.guesses - 1:
            return self.decode(code)
        possible = self.possible_codes()
        for guess in map(self.encode, self.state.guesses):
            possible = possible[self.number_hints(possible, guess) == self.number_hints(code[np.newaxis], guess)]
        return self.decode(pick_narrowing_guess(possible, self.number_hints))

    fork_state = share_state


def chance_score(hit: float, length: int, *, turn_reward: bool) -> float:
    """Return the highest score of blind guesses: a share `hit` of the codes, else all places but one."""
    return hit + turn_reward * TURN_SHARE * (1 - hit) * (length - 1) / length


def pick_narrowing_guess(possible: Codes, hints: Callable[[Codes, Codes], NDArray[np.int64]]) -> Codes:
    """Return the one of the possible codes whose hint leaves the fewest at worst (of an even sample of them).

    `hints(codes, guess)` gives for each row of `codes` the hint that `guess` would get, as one number.
    """
    rest = possible[:: -(-len(possible) // CODES_WEIGHED)]

    def left_at_worst(guess: Codes) -> int:
        return int(np.bincount(hints(rest, guess)).max())

    return min(possible[:: -(-len(possible) // GUESSES_WEIGHED)], key=left_at_worst)
