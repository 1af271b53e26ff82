"""Find a hidden code of colors from hints: `puzzles/mastermind-v0`."""

import math
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.envs.puzzles._codes import Codes, GuessingEnv, Hint, chance_score
from envgym.errors import InvalidInput
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

LETTERS = "ABCDEFGHIJ"
MAX_CODES = 100_000
MAX_GUESSES = 20
_WHERE = "puzzles/mastermind-v0"


class Mastermind(GuessingEnv):
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
        do = "choose fewer colors or places"
        InvalidInput.unless(num_codes <= MAX_CODES, "codes", "be at most 100,000", num_codes, where=_WHERE, do=do)
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
            code = rng.integers(self.colors, size=self.length)
        else:
            code = rng.permutation(self.colors)[: self.length]
        return TaskDraft(
            prompt=f"{self.hint} Guesses left: {self.guesses}.",
            payload={"code": "".join(LETTERS[color] for color in code), "colors": self.colors},
            metadata={"length": self.length, "repeats": self.repeats},
        )

    def code_of(self, task: Task) -> str:
        return str(task.payload["code"])

    def read_guess(self, action: Action) -> str | Reply:
        guess = "".join(plain_answer(action.content).upper().replace(",", " ").split())
        if len(guess) != self.length or not set(guess) <= set(LETTERS[: self.colors]):
            return Reply(observation=self.hint)
        if not self.repeats and len(set(guess)) < self.length:
            return Reply(observation=f"Each color may be there once. {self.hint}")
        return guess

    def give_hint(self, code: str, guess: str) -> Hint:
        right, near = judge(code, guess)
        return Hint(right, f"Right place: {right}. Right color, wrong place: {near}. ")

    def reveal(self, code: str) -> str:
        return f"The code was {' '.join(code)}."

    def possible_codes(self) -> Codes:
        return all_codes(self.length, self.colors, self.repeats)

    def encode(self, code: str) -> Codes:
        return np.array([LETTERS.index(letter) for letter in code], dtype=np.uint8)

    def decode(self, row: Codes) -> str:
        return " ".join(LETTERS[color] for color in row)

    def number_hints(self, codes: Codes, guess: Codes) -> NDArray[np.int64]:
        return number_hints(codes, guess, self.colors)


def judge(code: str, guess: str) -> tuple[int, int]:
    """Return how many colors are in their right places, and how many more are in the code elsewhere.

    A color counts in both as often as it is in the one that has fewer of it.
    """
    right = sum(a == b for a, b in zip(code, guess, strict=True))
    return right, sum(min(code.count(color), guess.count(color)) for color in set(guess)) - right


@lru_cache(maxsize=16)
def all_codes(length: int, colors: int, repeats: bool) -> Codes:
    """Return every code as a row of numbers of colors; not to be written to."""
    codes = product(range(colors), repeat=length) if repeats else permutations(range(colors), length)
    table = np.array(list(codes), dtype=np.uint8)
    table.setflags(write=False)
    return table


def number_hints(codes: Codes, guess: Codes, colors: int) -> NDArray[np.int64]:
    """Return for each code 7 times the colors in their right places plus the colors in common."""
    right = (codes == guess).sum(axis=1)
    common = sum(np.minimum((codes == color).sum(axis=1), (guess == color).sum()) for color in range(colors))
    return np.asarray(7 * right + common, dtype=np.int64)


def _example(env: Mastermind) -> list[int]:
    return [place % env.colors for place in range(env.length)]
