"""Find a hidden number from the answers higher and lower: `puzzles/guess_number-v0`."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, ToolObjectEnv
from envgym.core.messages import Action, Observation
from envgym.core.turns import Scored
from envgym.envs.puzzles._rewards import TURN_SHARE
from envgym.errors import InvalidInput, ToolError
from envgym.parsing import tool_call_action
from envgym.records import Reply

LOWEST = range(1, 901)
"""Where the range of a task may begin."""


@dataclass(slots=True)
class GuessNumberState:
    """The hidden number, and what the guesses have told about it."""

    low: int = 0
    high: int = 0
    """Together the range that the guesses so far leave."""
    secret: int = 0
    left: int = 0
    """Guesses left."""
    is_guessed: bool = False
    halvings: int = 0
    """Guesses so far that left at most half of the range."""
    paid: float = 0.0
    """Rewards of the turns so far."""
    size: int = 0
    """Of the range at the start."""

    def reset(self, low: int, high: int, secret: int, guesses: int) -> str:
        """Begin a game; the task's prompt says what there is to say."""
        self.low, self.high, self.secret, self.left = low, high, secret, guesses
        self.size = high - low + 1
        return ""

    def guess(self, number: int) -> str:
        """Guess the hidden number.

        Args:
            number: A whole number.
        """
        if self.is_over:
            raise ToolError("The game is over.")
        self.left -= 1
        self.is_guessed = number == self.secret
        if self.is_guessed:
            return "Correct."
        before = self.high - self.low + 1
        if number < self.secret:
            self.low = max(self.low, number + 1)
        else:
            self.high = min(self.high, number - 1)
        self.halvings += 2 * (self.high - self.low + 1) <= before
        hint = "Higher." if number < self.secret else "Lower."
        return f"{hint} Guesses left: {self.left}." if self.left else f"{hint} The number was {self.secret}."

    @property
    def is_over(self) -> bool:
        """Found, or out of guesses."""
        return self.is_guessed or self.left == 0

    @property
    def progress(self) -> float:
        """Share of the halvings that bisection can need, in [0, 1]."""
        return self.halvings / math.floor(math.log2(self.size))

    def score(self) -> float:
        """Return 1 where the number was found, else 0."""
        return float(self.is_guessed)

    def oracle(self) -> str:
        """Guess the middle."""
        return tool_call_action("guess", number=(self.low + self.high) // 2)


class GuessNumber(ToolObjectEnv[GuessNumberState]):
    """The agent guesses with the tool `guess` until it has found the number or runs out of guesses."""

    object_class = GuessNumberState
    system_prompt = "Find the number with the tool guess."

    def __init__(
        self,
        *,
        size: int = 100,
        slack: int = 3,
        turn_reward: bool = False,
        max_turns: int | None = 30,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the games.

        Args:
            size: How many numbers the range holds, 2 to 1,000,000.
            slack: Guesses beyond those that bisection needs at worst.
            turn_reward: Pay for narrowing the range down, turn by turn, instead of only at the end.
            max_turns: Turns until the episode is cut; turns without a guess count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        where = "puzzles/guess_number-v0"
        if not 2 <= size <= 1_000_000:
            raise InvalidInput.of("size", "be 2 to 1,000,000", size, where=where, do="pass e.g. size=100")
        InvalidInput.unless(slack >= 0, "slack", "be at least 0", slack, where=where, do="pass e.g. slack=3")
        super().__init__(max_turns=max_turns, **options)
        self.size, self.turn_reward = size, turn_reward
        self.guesses = size.bit_length() + slack
        self.chance_score = chance_score(size, self.guesses, TURN_SHARE if turn_reward else 0.0)
        self.tasks = GeneratedTasks(self._draw, name="puzzles/guess_number")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        low = int(rng.integers(LOWEST.start, LOWEST.stop))
        high = low + self.size - 1
        return TaskDraft(
            prompt=f"Find the whole number from {low} to {high}. Guesses left: {self.guesses}.",
            payload={"low": low, "high": high, "secret": int(rng.integers(low, high + 1)), "guesses": self.guesses},
            metadata={"size": self.size},
        )

    def respond(self, action: Action) -> Reply:
        """End the game: a message without a guess gives up."""
        return self._pay("", is_over=True)

    def after_tools(self, observation: Observation) -> Reply:
        return self._pay(observation, is_over=self.state.is_over)

    def _pay(self, observation: str, *, is_over: bool) -> Reply:
        """Pay what the game is worth by now, less what was paid: finding is worth 1, narrowing down `TURN_SHARE`."""
        game = self.state
        earned = max(game.score(), TURN_SHARE * game.progress if self.turn_reward else 0.0)
        value, game.paid = earned - game.paid, earned
        parts = {"found": game.score()} if is_over else {}
        return Reply(observation=observation, reward=Scored(value=value, components=parts), terminated=is_over)

    def fork_state(self) -> GuessNumberState:
        """Copy the game; all it holds is immutable."""
        return copy.copy(self.state)


def chance_score(size: int, guesses: int, turn_share: float) -> float:
    """Bound the expected reward of guesses that do not depend on the answers.

    p + turn_share (1 - p) min(K, log2((g + 1) / (1 - p))) / K  with p = g / n, K = floor(log2 n)

    g different guesses hit a number that is uniform over n with probability p. Where they miss, they cut the other
    n - g numbers into at most g + 1 runs; who is in a run of s numbers has seen at most log2(n / s) halvings, and the
    mean of that is largest for equal runs (Jensen).
    """
    hit = min(1.0, guesses / size)
    if hit == 1.0:
        return 1.0
    most = math.floor(math.log2(size))
    return hit + turn_share * (1 - hit) * min(most, math.log2((guesses + 1) / (1 - hit))) / most
