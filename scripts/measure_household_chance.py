"""Measure what random commands earn in `puzzles/household-v0`, and write `envs/puzzles/data/household/chance.toml`.

Run: python scripts/measure_household_chance.py [--tasks 300]. Two agents draw among the commands that can be done: one
from all alike, one draws the verb first and never looks, examines or closes. The better one counts. There are no
distractors, with which chance earns less.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envgym.core.tasks import Split
from envgym.envs.puzzles._household import MILESTONES, admissible_commands
from envgym.envs.puzzles._household_commands import HouseholdCommand
from envgym.envs.puzzles.household import MAX_ROOMS, MEASURED_TURNS, Household
from envgym.files import write_atomic
from envgym.seeds import generator
from envgym.stats import estimate_mean, estimate_success

PATH = Path(__file__).resolve().parent.parent / "envs" / "puzzles" / "data" / "household" / "chance.toml"
IDLE = ("look", "inventory", "examine", "close")
HEAD = """\
# What random commands that can be done earn in {turns} turns without distractors, by number of rooms and kind of task:
# the upper ends of intervals of 95 % over {tasks} tasks, of the better of two agents. Written by
# scripts/measure_household_chance.py.
"""


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300)
    tasks = parser.parse_args().tasks
    lines = {"solved": [""], "subgoals": [""]}
    for rooms in range(1, MAX_ROOMS + 1):
        highest: dict[str, list[str]] = {name: [] for name in lines}
        for kind in MILESTONES:
            both = [measure(kind, rooms, tasks, is_busy) for is_busy in (False, True)]
            for name, values in zip(highest, zip(*both, strict=True), strict=True):
                highest[name].append(f"{kind} = {max(high for _, high in values):.3f}")
            print(rooms, kind, both, flush=True)
        for name, parts in highest.items():
            lines[name].append(f"{rooms} = {{ {', '.join(parts)} }}")
    text = HEAD.format(turns=MEASURED_TURNS, tasks=tasks)
    for name, about in (("solved", "Reward 1 at the goal."), ("subgoals", "With subgoals=true.")):
        text += "\n".join([f"\n# {about}", f"[{name}]", *lines[name][1:], ""])
    write_atomic(PATH, text)


def measure(kind: str, rooms: int, tasks: int, is_busy: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return mean and upper end for tasks solved and for milestones reached."""
    env = Household(rooms=rooms, kinds=kind, distractors=0, max_turns=MEASURED_TURNS)
    solved, shares = {}, {}
    for index in range(tasks):
        task = env.tasks.task(Split.TRAIN, index)
        env.reset(options={"task": task})
        rng = generator("household chance", kind, rooms, index, int(is_busy))
        is_over = False
        while not is_over:
            commands = list(admissible_commands(env.state))
            result = env.step(
                env.write(_drawn_by_verb(commands, rng) if is_busy else commands[rng.integers(len(commands))])
            )
            is_over = result.terminated or result.truncated
        solved[task.id] = [float(result.terminated)]
        shares[task.id] = [env.state.reached.bit_count() / len(MILESTONES[kind])]
    rate = estimate_success(solved)
    share = estimate_mean(shares, rng=generator("household chance", kind, rooms))
    return (rate.value, rate.interval.high), (share.value, share.interval.high)


def _drawn_by_verb(commands: Sequence[HouseholdCommand], rng: np.random.Generator) -> HouseholdCommand:
    verbs = sorted({command.verb for command in commands} - set(IDLE))
    verb = verbs[rng.integers(len(verbs))]
    chosen = [command for command in commands if command.verb == verb]
    return chosen[rng.integers(len(chosen))]


if __name__ == "__main__":
    main()
