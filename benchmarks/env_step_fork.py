"""Cost of a reset, a turn and a fork of the built-in environments, played by their oracles.

Run: python benchmarks/env_step_fork.py [ENV ...] [--repeat 300]. Prints one JSON line of medians in microseconds;
a fork must stay under 200.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import envgym
from envgym.env import Env

LIMIT_FORK_US = 200.0
DEFAULT = (
    "math/arithmetic-v0",
    "math/instructions-v0",
    "math/metamath-v0",
    "puzzles/frozen_lake-v0",
    "puzzles/guess_number-v0",
    "puzzles/household-v0",
    "puzzles/knights_knaves-v0",
    "puzzles/mastermind-v0",
    "puzzles/minesweeper-v0",
    "puzzles/np-v0",
    "puzzles/reasoning_gym-v0",
    "puzzles/sokoban-v0",
    "puzzles/sudoku-v0",
    "puzzles/tsp-v0",
    "puzzles/twenty_four-v0",
    "puzzles/wordle-v0",
)


def microseconds(call: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def measure(env: Env[Any], repeat: int) -> dict[str, float]:  # every env has its own state type
    """Return medians over `repeat` turns, each with a fork before it; episodes follow each other."""
    resets: list[float] = []
    turns: list[float] = []
    forks: list[float] = []
    while len(turns) < repeat:
        resets.append(microseconds(partial(env.reset, seed=len(resets))))
        is_over = False
        while not is_over:
            action = env.oracle()
            forks.append(microseconds(env.fork))
            start = time.perf_counter_ns()
            result = env.step(action)
            turns.append((time.perf_counter_ns() - start) / 1e3)
            is_over = result.terminated or result.truncated
    return {
        "reset_us": round(median(resets), 1),
        "turn_us": round(median(turns), 1),
        "fork_us": round(median(forks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", metavar="ENV", nargs="*", default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=300)
    options = parser.parse_args()
    result: dict[str, object] = {"benchmark": "env_step_fork", "limit_fork_us": LIMIT_FORK_US}
    for env_id in options.envs:
        env = envgym.make(env_id)
        try:
            result[env_id] = measure(env, options.repeat)
        finally:
            env.close()
    print(json.dumps({**result, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
