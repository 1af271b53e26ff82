"""Time `tools/mcp-v0` with warm servers: `python -m benchmarks.mcp [--seconds S]`, one JSON line.

`turns_per_s` counts the turns of whole episodes of the oracle, resets included, played by one and by two threads;
`turn_ms` is the median turn. `reset_ms` is a reset to a given task with a warm server; `start_ms` starts one, as every
reset would without the pool. `fork_us` is a fork alone; `fork_turn_ms` is the first turn of a fork whose server is in
another state.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import envgym
from envgym.core.tasks import Split
from envgym.envs.tools._mcp.plans import SERVERS
from envgym.envs.tools._mcp.pool import McpServerPool
from envgym.envs.tools.mcp import McpTools
from envgym.parsing import tool_call_action


def main() -> None:
    """Take every measure, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measure of speed (default %(default)s)")
    seconds = parser.parse_args().seconds
    _play(0, 3.0)  # starts the servers
    one, turns, resets = _play(0, seconds)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_play, range(2), [3.0] * 2))
        both = [rate for rate, _, _ in pool.map(_play, range(2), [seconds] * 2)]
    figures = {"turns_per_s_1_thread": one, "turns_per_s_2_threads": sum(both), "turn_ms": 1000 * median(turns)}
    figures |= {"reset_ms": 1000 * median(resets), "start_ms": 1000 * _start()} | _forks()
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


def _made() -> McpTools:
    env = envgym.make("tools/mcp-v0").unwrapped
    assert isinstance(env, McpTools)
    return env


def _play(first: int, seconds: float) -> tuple[float, list[float], list[float]]:
    """Let the oracle work for a while; return the turns of a second, and the seconds of each turn and reset."""
    env, index, turns, resets = _made(), first, list[float](), list[float]()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        task = env.tasks.task(Split.TRAIN, index)
        start = time.perf_counter()
        env.reset(options={"task": task})
        resets.append(time.perf_counter() - start)
        index, is_over = index + 2, False
        while not is_over:
            action, start = env.oracle(), time.perf_counter()
            result = env.step(action)
            is_over = result.terminated or result.truncated
            turns.append(time.perf_counter() - start)
    return len(turns) / (time.perf_counter() - begun), turns, resets


def _start() -> float:
    """Return the median seconds that starting a server takes, once the SDK is imported."""
    env, taken = _made(), list[float]()
    env.reset(options={"split": "train", "index": 0})
    for _ in range(6):
        pool, begun = McpServerPool("files", 1), time.perf_counter()
        with pool.at(env.state.server) as connection:
            connection.list_tools()
        taken.append(time.perf_counter() - begun)
        pool.close()
    return median(taken)


def _forks() -> dict[str, float]:
    """Return what forks cost."""
    env, forking, hopping = _made(), list[float](), list[float]()
    env.reset(options={"split": "train", "index": 0})
    assert next(iter(SERVERS)) == "files", "the first task is on it"
    env.step(tool_call_action("start_editing"))
    for round_ in range(40):
        begun = time.perf_counter()
        forks = [env.fork() for _ in range(2)]
        forking.append((time.perf_counter() - begun) / 2)
        for fork in forks:
            begun = time.perf_counter()
            fork.step(tool_call_action("write_file", path="/notes/own.txt", text=f"{round_}"))
            hopping.append(time.perf_counter() - begun)
    return {"fork_us": 1e6 * median(forking), "fork_turn_ms": 1000 * median(hopping)}


if __name__ == "__main__":
    main()
