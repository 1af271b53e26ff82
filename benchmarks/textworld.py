"""Time `puzzles/textworld-v0` beside the package's env: `python -m benchmarks.textworld [--tasks N]`, one JSON line.

Both play the same solutions of the same games, the nine games in turn. `turns_per_s` and `package_steps_per_s` count
whole episodes with their resets, `admissible_turns_per_s` lists the actions that can be done, too; `turn_us` and
`package_step_us` are a turn without the reset, `reset_ms` and `package_reset_ms` a reset to a given game, and
`replay_ms` is the first turn of a fork that plays five turns again. All but the rates are medians.
"""

import argparse
import json
import time
from statistics import median

from textworld_express import TextWorldExpressEnv

from envgym.core.tasks import Split, Task
from envgym.envs.puzzles._textworld_simulator import TextWorldVariation, gold_actions
from envgym.envs.puzzles.textworld import GAMES, TextWorld, variation_of


def main() -> None:
    """Take every measure, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=180, help="games that are played (default %(default)s)")
    num_tasks = parser.parse_args().tasks
    package, own, listing, forked = TextWorldExpressEnv(), TextWorld(), TextWorld(admissible=True), TextWorld()
    resets: dict[str, list[float]] = {"package": [], "own": [], "listed": []}
    steps: dict[str, list[float]] = {"package": [], "own": [], "listed": []}
    replays: list[float] = []
    for index in range(len(GAMES), num_tasks + 2 * len(GAMES)):
        if index == 2 * len(GAMES):  # all machines have played each game
            resets, steps, replays = {name: [] for name in resets}, {name: [] for name in steps}, []
        task = own.tasks.task(Split.TRAIN, index)
        actions = gold_actions(_variation(task))
        begun = time.perf_counter()
        variation = _variation(task)
        package.reset(variation.seed, variation.fold, variation.game, variation.parameters)
        resets["package"].append(time.perf_counter() - begun)
        steps["package"] += [_seconds(package.step, action) for action in actions]
        for name, env in (("own", own), ("listed", listing)):
            begun = time.perf_counter()
            env.reset(options={"task": task})
            resets[name].append(time.perf_counter() - begun)
            steps[name] += [_seconds(env.step, action) for action in actions]
        if len(actions) > 5:
            forked.reset(options={"task": task})
            for action in actions[:5]:
                forked.step(action)
            fork = forked.fork()
            forked.step(actions[5])
            replays.append(_seconds(fork.step, actions[5]))
    rates = {"turns_per_s": "own", "package_steps_per_s": "package", "admissible_turns_per_s": "listed"}
    figures = {name: len(steps[key]) / (sum(steps[key]) + sum(resets[key])) for name, key in rates.items()}
    figures |= {"turn_us": 1e6 * median(steps["own"]), "package_step_us": 1e6 * median(steps["package"])}
    figures |= {"reset_ms": 1e3 * median(resets["own"]), "package_reset_ms": 1e3 * median(resets["package"])}
    figures["replay_ms"] = 1e3 * median(replays)
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


def _variation(task: Task) -> TextWorldVariation:
    seed = task.payload["seed"]
    assert isinstance(seed, int)
    return variation_of(str(task.payload["game"]), "train", seed)


def _seconds(step: object, action: str) -> float:
    assert callable(step)
    begun = time.perf_counter()
    step(action)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
