"""Time the shell session and `code/repo-v0`: `python -m benchmarks.repo`, one JSON line of medians in milliseconds.

A bare `bash -c true` and a bare `python3 -c pass` are taken in turns with the rest, as measures of the machine.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from envgym.core.tasks import Split
from envgym.envs.code.repo import Repositories
from envgym.parsing import tool_call_action
from envgym.sandbox.shell import ShellSession

ROUNDS = 10


def main() -> None:
    """Take every measure in turns, and print the medians."""
    env = Repositories(max_turns=10_000)
    options = {"task": env.tasks.task(Split.TRAIN, 0)}
    begun = time.perf_counter()
    env.reset(options=options)
    first = 1000 * (time.perf_counter() - begun)
    path = env.state.repair.repository + "/__init__.py"
    trees = {size: ShellSession({f"d{n % 9}/f{n}.py": b"x" * 2000 for n in range(size)}) for size in (10, 100, 1000)}
    measures: dict[str, Callable[[], object]] = {
        "bare_bash": lambda: subprocess.run(["bash", "-c", "true"], check=True),
        "bare_python": lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True),
        "fork": env.fork,
        "view": lambda: env.step(tool_call_action("view", path=path)),
        "search": lambda: env.step(tool_call_action("search", text="return")),
        "shell": lambda: env.step(tool_call_action("shell", command="ls")),
        "run_tests": lambda: env.step(tool_call_action("run_tests")),
        "reset_and_grade": lambda: (env.reset(options=options), env.step("Done."), env.reset(options=options)),
    }
    measures |= {f"command_among_{size}_files": partial(tree.run, "true") for size, tree in trees.items()}
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, call in measures.items():
            begun = time.perf_counter()
            call()
            taken[name].append(1000 * (time.perf_counter() - begun))
    print(json.dumps({"first_reset": round(first, 2)} | {name: round(median(ms), 2) for name, ms in taken.items()}))


if __name__ == "__main__":
    main()
