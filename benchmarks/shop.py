"""Speed of `web/shop-v0`: turns, forks, searches and resets of the engine, and with --browser those through Chromium.

Run: python benchmarks/shop.py [--episodes 200] [--browser 10]. Prints one JSON line. Episodes are the oracle's, each of
another task, so nothing but searches for the same words comes out of a cache; what the oracle thinks is not counted.
Times are CPU time of the thread, which a busy machine does not stretch, and real time beside it. Targets of the
engine: at least 5,000 turns a second, forks under 100 microseconds.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import mean, median

from envgym.envs.web.shop import Shop

TARGET_TURNS_PER_S, TARGET_FORK_US = 5_000, 100.0


class Watch:
    """Collects the times of one kind of call, in microseconds."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.real: list[float] = []

    def time(self, call: Callable[[], object]) -> None:
        """Time one call."""
        real, cpu = time.perf_counter_ns(), time.thread_time_ns()
        call()
        self.cpu.append((time.thread_time_ns() - cpu) / 1e3)
        self.real.append((time.perf_counter_ns() - real) / 1e3)

    def summary(self) -> dict[str, float]:
        """Return means, and the median of the real times, which no interruption moves."""
        return {
            "cpu_us": round(mean(self.cpu), 1),
            "real_us": round(mean(self.real), 1),
            "real_median_us": round(median(self.real), 1),
        }


def measure(env: Shop, episodes: int) -> dict[str, object]:
    """Play episodes of the oracle; fork before every turn where that is cheap."""
    resets, turns, forks = Watch(), Watch(), Watch()
    for index in range(episodes):
        resets.time(partial(env.reset, options={"split": "train", "index": index}))
        while not env.state.view.visit.is_over:
            action = env.oracle()
            if not env.blocking:
                forks.time(env.fork)
            turns.time(partial(env.step, action))
    result: dict[str, object] = {"turn": turns.summary(), "reset": resets.summary(), "turns": len(turns.cpu)}
    result["turns_per_s"] = round(1e6 / mean(turns.real))
    if forks.cpu:
        result |= {"fork": forks.summary(), "turns_per_cpu_s": round(1e6 / mean(turns.cpu))}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--browser", type=int, default=0, metavar="EPISODES", help="episodes through Chromium")
    options = parser.parse_args()
    engine = Shop()
    measure(engine, 5)  # the catalogue is drawn, and tools are read, once for the process
    result: dict[str, object] = {
        "benchmark": "shop",
        "target_turns_per_s": TARGET_TURNS_PER_S,
        "target_fork_us": TARGET_FORK_US,
    }
    result["engine"] = measure(engine, options.episodes)
    if options.browser:
        browser = Shop(browser=True)
        try:
            measure(browser, 1)
            result["browser"] = measure(browser, options.browser)
        finally:
            browser.close()
    print(json.dumps({**result, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
