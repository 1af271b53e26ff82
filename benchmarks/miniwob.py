"""Episodes per second of `web/miniwob-v0`: whole episodes, reset included, played by the oracles in real Chromium.

Run: python -m benchmarks.miniwob [--pages click-button use-slider ...] [--episodes 5] [--input dom mouse]. Prints one
JSON line: for each input the median over the pages of a page's episodes per second, how many episodes were solved, and
the slowest pages. (`envgym bench envs web/miniwob-v0` draws pages at random, so a few slow ones decide its figure.)
"""

import time
from collections.abc import Sequence
from contextlib import closing
from statistics import median

from benchmarks._options import print_result, read_options
from envgym.core.tasks import Split, Task
from envgym.envs.web.miniwob import MiniWob

_SLOWEST = 5


def episode(env: MiniWob, page: str, seed: int) -> bool:
    """Play one problem with the oracle; return whether it was solved."""
    task = Task(id=f"{page}/{seed}", prompt="", payload={"page": page, "seed": seed}, split=Split.TRAIN)
    env.reset(options={"task": task})
    while True:
        result = env.step(env.oracle())
        if result.terminated or result.truncated:
            return result.reward == 1.0


def measure(input: str, pages: Sequence[str], episodes: int) -> dict[str, object]:
    """Play `episodes` problems of each page, after one that loads it."""
    rates: dict[str, float] = {}
    solved = 0
    with closing(MiniWob(pages=pages or "solved", input=input)) as env:
        for page in env.pages:
            episode(env, page, 0)
            start = time.perf_counter()
            solved += sum(episode(env, page, seed) for seed in range(1, episodes + 1))
            rates[page] = episodes / (time.perf_counter() - start)
    return {
        "median_episodes_per_s": round(median(rates.values()), 1),
        "pages": len(rates),
        "solved": f"{solved}/{episodes * len(rates)}",
        "slowest": {page: round(rates[page], 1) for page in sorted(rates, key=rates.__getitem__)[:_SLOWEST]},
    }


def main() -> None:
    """Play `--episodes` problems of each page, by default of all with an oracle, and print one line."""
    options = read_options(__doc__, pages=(), episodes=5, input=("dom", "mouse"))
    print_result("miniwob", **{input: measure(input, options.pages, options.episodes) for input in options.input})


if __name__ == "__main__":
    main()
