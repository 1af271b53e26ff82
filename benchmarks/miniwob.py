"""Episodes per second of `web/miniwob-v0`: whole episodes, reset included, played by the oracles in real Chromium.

Run: python benchmarks/miniwob.py [--pages click-button use-slider ...] [--episodes 5] [--input dom mouse]. Prints one
JSON line: for each input the median over the pages of a page's episodes per second (goals on two idle cores: 20 with
events of the page, 8 with the browser's mouse), how many episodes were solved, and the slowest pages. On Linux also the
processor time of an episode, of Python, driver and browser together: a busy machine stretches only the other number.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

from envgym.core.tasks import Split, Task
from envgym.envs.web.miniwob import MiniWob

GOALS = {"dom": 20.0, "mouse": 8.0}
_SLOWEST = 5


def episode(env: MiniWob, page: str, seed: int) -> bool:
    """Play one problem with the oracle; return whether it was solved."""
    task = Task(id=f"{page}/{seed}", prompt="", payload={"page": page, "seed": seed}, split=Split.TRAIN)
    env.reset(options={"task": task})
    while True:
        result = env.step(env.oracle())
        if result.terminated or result.truncated:
            return result.reward == 1.0


def processor_seconds() -> float:
    """Return the processor time of this process and all below it; 0 where there is no `/proc`."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds[pid] for pid in parents if _is_below(pid, os.getpid(), parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid not in (root, 0):
        pid = parents.get(pid, 0)
    return pid == root


def measure(input: str, pages: Sequence[str], episodes: int) -> dict[str, object]:
    """Play `episodes` problems of each page, after one that loads it."""
    rates: dict[str, float] = {}
    costs: list[float] = []
    solved = 0
    with closing(MiniWob(pages=pages or "solved", input=input)) as env:
        for page in env.pages:
            episode(env, page, 0)
            start, used = time.perf_counter(), processor_seconds()
            solved += sum(episode(env, page, seed) for seed in range(1, episodes + 1))
            rates[page] = episodes / (time.perf_counter() - start)
            costs.append((processor_seconds() - used) / episodes)
    slowest = sorted(rates, key=rates.__getitem__)[:_SLOWEST]
    return {
        "median_episodes_per_s": round(median(rates.values()), 1),
        "goal": GOALS[input],
        "processor_ms_per_episode": round(1e3 * median(costs), 1),
        "pages": len(rates),
        "solved": f"{solved}/{episodes * len(rates)}",
        "slowest": {page: round(rates[page], 1) for page in slowest},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="*", default=[], help="default: all with an oracle")
    parser.add_argument("--episodes", type=int, default=5, help="of each page")
    parser.add_argument("--input", nargs="+", choices=sorted(GOALS), default=["dom", "mouse"])
    arguments = parser.parse_args()
    results = {input: measure(input, arguments.pages, arguments.episodes) for input in arguments.input}
    machine = {"cpu": platform.processor() or platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({**results, **machine}))


if __name__ == "__main__":
    main()
