"""Time `puzzles/science-v0` beside the package's own env: `python -m benchmarks.science [--tasks N]`, one JSON line.

Both play the simulator's solutions of the same variations, in turn, without the reset: `turns_per_s` here, and
`package_steps_per_s` with its `step`, which lists the actions that can be done each time. `admissible_turns_per_s`
lists them here, too. `reset_ms` is a reset to a given task, `package_reset_ms` its `load` and `reset`, `replay_ms` the
first turn of a fork that plays ten turns again.
"""

import argparse
import json
import time
from statistics import median

from scienceworld import ScienceWorldEnv

from envgym.core.tasks import Split
from envgym.envs.puzzles._science_simulator import ScienceVariation, gold_actions
from envgym.envs.puzzles.science import Science

KINDS = ("boil", "find-animal", "grow-plant", "inclined-plane-determine-angle", "power-component", "use-thermometer")
NUM_STEPS = 30


def main() -> None:
    """Take every measure, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12, help="variations that are played (default %(default)s)")
    tasks = parser.parse_args().tasks
    taken: dict[str, list[float]] = {
        name: [] for name in ("own", "listed", "package", "reset", "package_reset", "replay")
    }
    package = ScienceWorldEnv(envStepLimit=1000)
    plain, listing = Science(kinds=KINDS), Science(kinds=KINDS, admissible=True)
    for index in range(tasks):
        task = plain.tasks.task(Split.TRAIN, index)
        kind, number = str(task.metadata["kind"]), int(str(task.metadata["variation"]))
        actions = gold_actions(ScienceVariation(kind, number))[:NUM_STEPS]
        begun = time.perf_counter()
        package.load(kind, number, "")
        package.reset()
        taken["package_reset"].append(time.perf_counter() - begun)
        for action in actions:
            taken["package"].append(_seconds(package.step, action))
        for name, env in (("own", plain), ("listed", listing)):
            begun = time.perf_counter()
            env.reset(options={"task": task})
            taken["reset"] += [time.perf_counter() - begun] if name == "own" else []
            for place, action in enumerate(actions):
                fork = env.fork() if name == "own" and place == 10 else None
                taken[name].append(_seconds(env.step, action))
                taken["replay"] += [_seconds(fork.step, action)] if fork is not None else []
                if env._is_over:
                    break
    rates = {"turns_per_s": "own", "package_steps_per_s": "package", "admissible_turns_per_s": "listed"}
    figures = {name: len(taken[key]) / sum(taken[key]) for name, key in rates.items()}
    figures |= {f"{name}_ms": 1000 * median(taken[name]) for name in ("reset", "package_reset", "replay")}
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


def _seconds(step: object, action: str) -> float:
    assert callable(step)
    begun = time.perf_counter()
    step(action)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
