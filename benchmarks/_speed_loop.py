"""Processor time of a turn in the loop of verifiers: the conversation of `benchmarks/loop_overhead.py`.

Run: .venv-speed/bin/python -m benchmarks._speed_loop [--episodes 1000] [--turns 10] [--repeat 3]. Prints one JSON line.

All episodes are under way at a time, a scripted model answers at once, the environment says `ok`, and nothing is
scored; each request waits once. verifiers stays with messages here, while envgym's turn also makes tokens, masks and a
tree. Its later releases run an agent program in a process of its own and answer it through an HTTP server, so the last
release whose loop runs in one process is measured.
"""

import asyncio
import gc
import statistics
import time
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Any

from benchmarks._options import print_result, read_options

TALK = "go on"


def make_env(num_turns: int) -> Any:  # verifiers.MultiTurnEnv, not installed where types are checked
    verifiers: Any = import_module("verifiers")  # as above
    datasets: Any = import_module("datasets")  # as above

    class Idle(verifiers.MultiTurnEnv):  # type: ignore[misc]  # as above
        async def env_response(self, messages: object, state: object, **_: object) -> list[Any]:  # its messages
            return [verifiers.UserMessage(content="ok")]

    rows = datasets.Dataset.from_list([{"question": "Talk.", "answer": ""}])
    return Idle(max_turns=num_turns, dataset=rows, rubric=verifiers.Rubric())


def make_client() -> Any:  # verifiers.Client
    verifiers: Any = import_module("verifiers")  # as above
    types: Any = import_module("verifiers.types")  # as above

    class Scripted(verifiers.Client):  # type: ignore[misc]  # as above
        async def get_response(self, *_: object, **__: object) -> object:
            await asyncio.sleep(0)
            message = types.ResponseMessage(content=TALK, finish_reason="stop", is_truncated=False)
            return types.Response(id="", created=0, model="scripted", message=message)

    Scripted.__abstractmethods__ = frozenset()  # the rest is what `get_response` calls
    return Scripted(object())


async def run(env: Any, client: Any, num_episodes: int) -> list[Any]:  # as above
    """Play all episodes at a time; return their states."""
    (row,) = env.get_dataset().to_list()
    return await asyncio.gather(*[env.rollout(dict(row), client, "scripted", {}) for _ in range(num_episodes)])


def main() -> None:
    options = read_options(__doc__, episodes=1000, turns=10, repeat=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env, client = make_env(options.turns), make_client()
    num_turns = options.episodes * options.turns
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(options.repeat):
        gc.collect()
        started, started_cpu = time.perf_counter(), time.process_time()
        states = asyncio.run(run(env, client, options.episodes))
        wall.append((time.perf_counter() - started) / num_turns * 1e6)
        cpu.append((time.process_time() - started_cpu) / num_turns * 1e6)
        assert sum(len(state["trajectory"]) for state in states) == num_turns
    print_result(
        "speed_loop",
        episodes=options.episodes,
        turns=options.turns,
        us_per_turn=round(statistics.median(wall), 1),
        cpu_us_per_turn=round(statistics.median(cpu), 1),
        verifiers=version("verifiers"),
    )


if __name__ == "__main__":
    main()
