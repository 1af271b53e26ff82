"""Time of a BM25 query over the pages of the World Factbook, and of a whole `search` call of `search/factbook-v0`.

Run: python benchmarks/bm25.py [--queries 500]. Prints one JSON line of medians in milliseconds; a query must stay
under 3. Queries are the questions themselves, so they are long. `cpu_ms` is processor time: it tells a busy machine
from a slow index.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median, quantiles

import bm25s

import envgym
from envgym.core.tasks import Split
from envgym.envs.search._library import factbook, load_questions
from envgym.parsing import tool_call_action
from envgym.retrieval import Bm25

LIMIT_MS = 3.0


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor time of one call."""
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    call()
    return (time.perf_counter_ns() - wall) / 1e6, (time.process_time_ns() - cpu) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=500)
    options = parser.parse_args()
    corpus, tasks = factbook(), load_questions(None).by_split[Split.TRAIN][: options.queries]
    opening, _ = milliseconds(lambda: Bm25(corpus))
    index = Bm25(corpus)
    queries = [milliseconds(partial(index.search, task.prompt, 5)) for task in tasks]
    env, calls = envgym.make("search/factbook-v0", max_turns=None), []
    for task in tasks:
        env.reset(options={"task": task})
        calls.append(milliseconds(partial(env.step, tool_call_action("search", query=task.prompt))))
    walls = [wall for wall, _ in queries]
    result = {
        "benchmark": "bm25",
        "pages": len(corpus),
        "queries": len(tasks),
        "open_index_ms": round(opening, 1),
        "query_ms": round(median(walls), 3),
        "query_p95_ms": round(quantiles(walls, n=20)[-1], 3),
        "query_cpu_ms": round(median(cpu for _, cpu in queries), 3),
        "search_turn_ms": round(median(wall for wall, _ in calls), 3),
        "search_turn_cpu_ms": round(median(cpu for _, cpu in calls), 3),
        "limit_ms": LIMIT_MS,
        "ok": median(walls) < LIMIT_MS,
        "bm25s": bm25s.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
