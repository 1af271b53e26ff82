"""How long `envgym view` makes a reader wait at 100,000 episodes; one line of JSON, milliseconds.

Run: python -m benchmarks.viewer [--episodes N]. A run of that size is written to a temporary folder. Each number is the
slowest of five: `first_page_ms` of page, scripts, list of runs and first table together; `filter_ms` of a filter or
sort, as a client waits for it; `while_reading_ms` of one while the trees are still read in the background.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks._options import print_result, read_options
from envgym.viewer.server import ViewerServer, running
from envgym.viewer.viewed_run import ViewedRun
from tests.support.large_runs import large_run

PER_STEP = 1000
FIRST = ("/", "/assets/shared.js", "/assets/shared.css", "/assets/viewer.css", "/assets/main.js", "/api/runs")
FILTERS = (
    {"text": "98 then"},
    {"task": "42", "min_reward": 0.5},
    {"ending": "ERROR"},
    {"reward": "invalid", "sort": "task"},
    {"min_tool_errors": 1, "sort": "advantage", "descending": "true"},
    {"min_step": 10, "max_step": 20, "sort": "tokens", "offset": 5000},
)
REPEATS = 5


def slowest_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    waits = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        waits.append(time.perf_counter() - started)
    return round(1000 * max(waits), 1)


def first_page(ask: Callable[[str, dict[str, str | int | float]], None]) -> None:
    for path in (*FIRST, "/api/runs/0/episodes"):
        ask(path, {})


def main() -> None:
    num_episodes = read_options(__doc__, episodes=100_000).episodes
    with tempfile.TemporaryDirectory() as folder:
        num_steps = max(1, num_episodes // PER_STEP)
        run = large_run(Path(folder) / "run", num_steps=num_steps, episodes_per_step=num_episodes // num_steps)
        started = time.perf_counter()
        viewed = ViewedRun(run.path)
        server = ViewerServer([viewed])
        start_ms = round(1000 * (time.perf_counter() - started), 1)
        with running(server), httpx.Client(base_url=server.url, timeout=60.0) as client:

            def ask(path: str, query: dict[str, str | int | float]) -> None:
                client.get(path, params=query).raise_for_status()

            def table(query: dict[str, str | int | float]) -> None:
                ask("/api/runs/0/episodes", query)

            table({})  # imports what the others need, too
            reading = [slowest_ms(lambda query=query: table(query), 1) for query in FILTERS]  # type: ignore[misc]
            while viewed.index.num_with_details < num_episodes:
                time.sleep(0.1)
            first = slowest_ms(lambda: first_page(ask))
            filters = {
                " ".join(query): slowest_ms(lambda query=query: table(query))  # type: ignore[misc]  # bound at once
                for query in FILTERS
            }
            groups = slowest_ms(lambda: ask("/api/runs/0/groups", {"spread": "none", "sort": "mean"}))
            row = client.get("/api/runs/0/episodes", params={"offset": num_episodes // 2, "limit": 1}).json()[
                "episodes"
            ][0]
            name = {"source": row["source"], "step": row["step"], "tree": row["tree_id"], "leaf": row["leaf"]}
            episode = slowest_ms(lambda: ask("/api/runs/0/episode", name), 1)
    print_result(
        "viewer",
        episodes=num_episodes,
        start_ms=start_ms,
        first_page_ms=first,
        filter_ms=max(filters.values()),
        filters_ms=filters,
        groups_ms=groups,
        episode_ms=episode,
        while_reading_ms=max(reading),
    )


if __name__ == "__main__":
    main()
