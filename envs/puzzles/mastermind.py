"""Find a hidden code of colors from hints: `puzzles/mastermind-v0`."""

import math
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envgym.authoring import GeneratedTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.rewards import Scored
from envgym.core.tasks import Task
from envgym.env import Env, Reply
from envgym.envs.puzzles._codes import Board, Codes, chance_score, narrowing_guess
from envgym.envs.puzzles._play import check_range, read_answer
from envgym.errors import InvalidInput, sentence

LETTERS = "ABCDEFGHIJ"
MAX_CODES = 100_000
MAX_GUESSES = 20
_WHERE = "puzzles/mastermind-v0"

Hint = tuple[int, int]
"""How many colors are in their right places, and how many more are in the code elsewhere."""


class Mastermind(Env[Board]):
    """Every well-formed message is a guess; the episode ends with the code or the last guess."""

    def __init__(
        self,
        *,
        length: int = 4,
        colors: int = 6,
        guesses: int = 10,
        repeats: bool = True,
        turn_reward: bool = False,
        max_turns: int | None = 30,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the codes.

        Args:
            length: Places of the code, 2 to 6.
            colors: 2 to 10; there are at most 100,000 codes.
            guesses: 1 to 20.
            repeats: Whether a color may be in the code, and in a guess, more than once.
            turn_reward: Pay for colors in their right places, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut; messages that are no guess count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        check_range("length", length, 2, 6, where=_WHERE)
        check_range("colors", colors, 2 if repeats else length, 10, where=_WHERE)
        check_range("guesses", guesses, 1, MAX_GUESSES, where=_WHERE)
        num_codes = colors**length if repeats else math.perm(colors, length)
        if num_codes > MAX_CODES:
            do = "choose fewer colors or places"
            raise InvalidInput(sentence("codes", "be at most 100,000", num_codes, where=_WHERE, do=do))
        super().__init__(max_turns=max_turns, **options)
        self.length, self.colors, self.guesses = length, colors, guesses
        self.repeats, self.turn_reward = repeats, turn_reward
        self.chance_score = chance_score(min(1.0, guesses / num_codes), length, turn_reward=turn_reward)
        letters = " ".join(LETTERS[:colors])
        self.hint = f"Say {length} of the colors {letters}, such as {' '.join(LETTERS[i] for i in _example(self))}."
        rule = "may be there more than once" if repeats else "is there at most once"
        self.system_prompt = f"Find the hidden code of {length} colors; each {rule}. {self.hint}"
        self.tasks = GeneratedTasks(self._draw, name="puzzles/mastermind")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        if self.repeats:
            drawn = rng.integers(self.colors, size=self.length)
        else:
            drawn = rng.permutation(self.colors)[: self.length]
        return TaskDraft(
            prompt=f"{self.hint} Guesses left: {self.guesses}.",
            payload={"code": "".join(LETTERS[color] for color in drawn), "colors": self.colors},
            metadata={"length": self.length, "repeats": self.repeats},
        )

    def begin(self, task: Task) -> str:
        """Hide the code."""
        self.state = Board(str(task.payload["code"]))
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Judge a guess, and pay."""
        guess = "".join(read_answer(action).upper().replace(",", " ").split())
        if len(guess) != self.length or not set(guess) <= set(LETTERS[: self.colors]):
            return Reply(observation=self.hint)
        if not self.repeats and len(set(guess)) < self.length:
            return Reply(observation=f"Each color may be there once. {self.hint}")
        board = self.state
        right, near = judge(board.code, guess)
        self.state = board.after(guess, right, turn_reward=self.turn_reward)
        earned, is_found = self.state.paid - board.paid, guess == board.code
        left = self.guesses - len(self.state.guesses)
        if left and not is_found:
            text = f"Right place: {right}. Right color, wrong place: {near}. Guesses left: {left}."
            return Reply(observation=text, reward=earned)
        reward = Scored(value=earned, components={"found": float(is_found)})
        end = "Correct." if is_found else f"The code was {' '.join(board.code)}."
        return Reply(observation=end, reward=reward, terminated=True)

    def oracle(self) -> str:
        """Guess a code that agrees with all hints and leaves few others at worst; the last guess is the code itself."""
        board = self.state
        if len(board.guesses) == self.guesses - 1:
            return " ".join(board.code)
        possible = all_codes(self.length, self.colors, self.repeats)
        for guess in board.guesses:
            possible = possible[hints(possible, _numbers(guess), self.colors) == _packed(judge(board.code, guess))]
        best = narrowing_guess(possible, lambda codes, guess: hints(codes, guess, self.colors))
        return " ".join(LETTERS[color] for color in best)

    def fork_state(self) -> Board:
        """Share the board: it is immutable."""
        return self.state


def judge(code: str, guess: str) -> Hint:
    """Return the hint for a guess; a color counts in both as often as it is in the one that has fewer of it."""
    right = sum(a == b for a, b in zip(code, guess, strict=True))
    return right, sum(min(code.count(color), guess.count(color)) for color in set(guess)) - right


@lru_cache(maxsize=16)
def all_codes(length: int, colors: int, repeats: bool) -> Codes:
    """Return every code as a row of numbers of colors; not to be written to."""
    codes = product(range(colors), repeat=length) if repeats else permutations(range(colors), length)
    table = np.array(list(codes), dtype=np.uint8)
    table.setflags(write=False)
    return table


def hints(codes: Codes, guess: Codes, colors: int) -> NDArray[np.int64]:
    """Return for each code the hint that `guess` would get, as one number."""
    right = (codes == guess).sum(axis=1)
    common = sum(np.minimum((codes == color).sum(axis=1), (guess == color).sum()) for color in range(colors))
    return np.asarray(7 * right + common, dtype=np.int64)


def _packed(hint: Hint) -> int:
    return 8 * hint[0] + hint[1]


def _numbers(guess: str) -> Codes:
    return np.array([LETTERS.index(letter) for letter in guess], dtype=np.uint8)


def _example(env: Mastermind) -> list[int]:
    """Return the first colors in order, over again where there are too few."""
    return [place % env.colors for place in range(env.length)]
