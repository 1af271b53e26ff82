"""Steps per second of one game on the interfaces of envgym, GEM, TextArena and OpenEnv, in turns in one process.

Run: .venv-speed/bin/python -m benchmarks._speed_envs [--steps 500] [--rounds 25]. Prints one JSON line.

The game: find a number from 1 to 20 in at most 20 guesses, each answered by higher or lower; the guesses bisect. GEM
and TextArena bring it; OpenEnv brings an interface alone, so the game is written for it here, and runs without the
server that usually stands between agent and environment. Timed are calls of `step` and, apart from them, of `reset`;
what chooses the guess is not. A round is the same number of steps on every side; medians over the rounds.
"""

import random
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from statistics import median
from typing import Any, Final, NamedTuple

import envgym
from benchmarks._options import print_result, read_options
from envgym.parsing import tool_call_action

LOW, HIGH, GUESSES = 1, 20, 20
PEERS: Final = {"gem": "gem-llm", "textarena": "textarena", "openenv": "openenv-core"}
"""Side -> its package."""


class Answer(NamedTuple):
    text: str
    is_over: bool


class Side(NamedTuple):
    reset: Callable[[int], tuple[int, int]]
    """Begin the game of a seed; return the lowest and the highest number."""
    step: Callable[[Any], Any]  # whatever the interface takes and returns
    action: Callable[[int], Any]
    """Write a guess down as the interface takes it."""
    read: Callable[[Any], Answer]


def make_envgym() -> Side:
    """Return our game of this name, which is played with a tool."""
    env = envgym.make("puzzles/guess_number-v0", size=HIGH - LOW + 1, slack=GUESSES - (HIGH - LOW + 1).bit_length())

    def reset(seed: int) -> tuple[int, int]:
        env.reset(seed=seed)
        return env.state.low, env.state.high

    return Side(
        reset,
        env.step,
        lambda number: tool_call_action("guess", number=number),
        lambda result: Answer(str(result.observation), result.terminated or result.truncated),
    )


def make_gem() -> Side:
    gem: Any = import_module("gem")  # ships no types
    env = gem.make("game:GuessTheNumber-v0-hard", min_number=LOW, max_number=HIGH, max_turns=GUESSES)

    def reset(seed: int) -> tuple[int, int]:
        env.reset(seed=seed)
        return LOW, HIGH

    return Side(reset, env.step, lambda number: f"\\boxed{{{number}}}", lambda r: Answer(r[0], r[2] or r[3]))


def make_textarena() -> Side:
    """Return TextArena's game, without its wrappers; an agent reads what it shows after every step."""
    textarena: Any = import_module("textarena")  # ships no types
    env = textarena.make("GuessTheNumber-v0-raw", min_number=LOW, max_number=HIGH, max_turns=GUESSES)

    def reset(seed: int) -> tuple[int, int]:
        env.reset(num_players=1, seed=seed)
        env.get_observation()
        return LOW, HIGH

    def step(action: str) -> tuple[bool, Any]:
        is_over, _ = env.step(action)
        return is_over, None if is_over else env.get_observation()

    def read(result: tuple[bool, Any]) -> Answer:
        is_over, shown = result
        return Answer("" if is_over else shown[1][-1][1], is_over)

    return Side(reset, step, lambda number: f"[{number}]", read)


def make_openenv() -> Side:
    interfaces: Any = import_module("openenv.core.env_server.interfaces")  # not installed where types are checked
    types: Any = import_module("openenv.core.env_server.types")  # as above

    class Guess(types.Action):  # type: ignore[misc]  # as above
        number: int

    class Hint(types.Observation):  # type: ignore[misc]  # as above
        text: str

    class Game(interfaces.Environment):  # type: ignore[misc]  # as above
        secret = left = 0

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Hint:
            self.secret, self.left = random.Random(seed).randint(LOW, HIGH), GUESSES
            return Hint(text=f"Find the whole number from {LOW} to {HIGH}.")

        def step(self, action: Guess, timeout_s: float | None = None, **_: object) -> Hint:
            self.left -= 1
            if action.number == self.secret:
                return Hint(text="Correct.", done=True, reward=1.0)
            hint = "higher" if action.number < self.secret else "lower"
            return Hint(text=f"The number is {hint}.", done=self.left == 0, reward=0.0)

        @property
        def state(self) -> object:
            return self.left

    game = Game()

    def reset(seed: int) -> tuple[int, int]:
        game.reset(seed=seed)
        return LOW, HIGH

    return Side(reset, game.step, lambda number: Guess(number=number), lambda hint: Answer(hint.text, hint.done))


MAKERS: Final[dict[str, Callable[[], Side]]] = {
    "envgym": make_envgym,
    "gem": make_gem,
    "textarena": make_textarena,
    "openenv": make_openenv,
}


class Times(NamedTuple):
    """Seconds of one call, the mean of a round."""

    step_s: float
    reset_s: float


def play(side: Side, num_steps: int) -> Times:
    """Play games until so many steps are done.

    Raises: AssertionError: bisection did not find a number, so that the side plays another game.
    """
    step_s = reset_s = 0.0
    games = done = 0
    while done < num_steps:
        begun = time.perf_counter()
        low, high = side.reset(games)
        reset_s += time.perf_counter() - begun
        games += 1
        for _ in range((HIGH - LOW + 1).bit_length()):
            number = (low + high) // 2
            action = side.action(number)
            begun = time.perf_counter()
            result = side.step(action)
            step_s += time.perf_counter() - begun
            done += 1
            answer = side.read(result)
            if answer.is_over:
                break
            low, high = (number + 1, high) if "higher" in answer.text.lower() else (low, number - 1)
        assert answer.is_over, "a number of 20 is found in 5 guesses"
    return Times(step_s / done, reset_s / games)


def main() -> None:
    options = read_options(__doc__, steps=500, rounds=25, sides=tuple(MAKERS))
    sides = {name: MAKERS[name]() for name in options.sides}
    for side in sides.values():
        play(side, 100)  # imports, and tables that are read once
    times: dict[str, list[Times]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            times[name].append(play(side, options.steps))
    result = {
        name: {
            "steps_per_s": round(1 / median(each.step_s for each in taken)),
            "step_us": round(1e6 * median(each.step_s for each in taken), 1),
            "reset_us": round(1e6 * median(each.reset_s for each in taken), 1),
        }
        for name, taken in times.items()
    }
    versions = {name: version(package) for name, package in PEERS.items() if name in sides}
    print_result("speed_envs", sides=result, versions=versions)


if __name__ == "__main__":
    main()
