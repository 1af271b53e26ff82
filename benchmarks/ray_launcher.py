"""What Ray costs a run: seconds to place, start and end processes, and per episode, beside the local launcher.

Run: python -m benchmarks.ray_launcher [--processes 4] [--rounds 5] [--episodes 32], with Ray and a cluster that
`RAY_ADDRESS` names, or a local one of its own otherwise. Prints one JSON line.

The processes print one line and wait. Episodes are of environments in an environment server: nothing of them passes
through Ray, so both launchers should take the same time for one. The sides take turns, and medians count.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import envgym
from benchmarks._options import print_result, read_options
from envgym.agents.rollout.episode import EpisodeEnv, EpisodeJob
from envgym.core.messages import Action
from envgym.core.tasks import Split
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.handles import LocalStarter, ProcessStarter
from envgym.runtime.processes.process import ProcessSpec
from envgym.runtime.ray.placement import Bundle, PlacementRequest
from envgym.runtime.ray.starter import placed_by_ray
from envgym.serving.wire import TOKEN_VARIABLE

_ENV: Final = "benchmarks.env_server:Echo"
_TURNS: Final = 16
_READY_S: Final = 120.0
_WAIT: Final = 'import time; print(\'{"time": "", "role": "", "event": "ready"}\', flush=True); time.sleep(1000)'


def waiting(number: int) -> ProcessSpec:
    """Return a process that is ready at once, and then waits."""
    return ProcessSpec(f"process-{number}", (sys.executable, "-c", _WAIT))


@contextmanager
def running(starter: ProcessStarter, specs: Sequence[ProcessSpec], times: dict[str, float]) -> Iterator[list[str]]:
    """Run processes for a block, which gets their addresses; add what starting and ending took."""
    with TemporaryDirectory() as folder:
        begun = time.perf_counter()
        with Processes(Path(folder), run="ray_launcher", resume="none", starter=starter) as processes:
            processes.start(specs)
            ready = processes.wait_ready(timeout_s=_READY_S)
            times["start"] = time.perf_counter() - begun
            yield [str(told["url"]) for told in ready.values() if "url" in told]
            begun = time.perf_counter()
        times["end"] = time.perf_counter() - begun


def time_episodes(url: str, episodes: int) -> float:
    """Return milliseconds of wall time per episode of `_TURNS` turns, all at a time."""
    make = partial(envgym.make, f"{url}/{_ENV}")
    task = make().unwrapped.tasks.task(Split.TRAIN, 0)
    jobs = [EpisodeJob(make_env=make, task=task, seed=0, tree_id=str(n), env_id="echo") for n in range(episodes)]

    async def play(job: EpisodeJob) -> None:
        env = EpisodeEnv(job)
        await env.reset()
        for _ in range(_TURNS):
            await env.step(Action("hello"))
        await env.close()

    async def play_all() -> None:
        await asyncio.gather(*map(play, jobs))

    started = time.perf_counter()
    asyncio.run(play_all())
    return 1e3 * (time.perf_counter() - started) / episodes


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    os.environ.setdefault(TOKEN_VARIABLE, "benchmark")  # both servers ask for it
    specs = [waiting(number) for number in range(options.processes)]
    request = PlacementRequest(
        address="auto" if "RAY_ADDRESS" in os.environ else "local",
        strategy="PACK",
        bundles=tuple(
            Bundle(role=role, cpus=0.1, gpus=0) for role in ("controller", *(spec.role for spec in specs), "env-server")
        ),
        directory=os.getcwd(),
        run=os.getcwd(),
        timeout_s=_READY_S,
        clock_tolerance_s=5,
    )
    begun = time.perf_counter()
    with placed_by_ray(request) as starter:
        placed_s = time.perf_counter() - begun
        host = starter.placement.host
        serve = ("serve", _ENV, "--port", "0", "--host", host)
        for _ in range(options.rounds + 1):  # the first warms up
            for name, side in (("local", LocalStarter()), ("ray", starter)):
                times: dict[str, float] = {}
                with running(side, specs, times):
                    pass
                for what, seconds in times.items():
                    figures.setdefault(f"{name}_{what}_s", []).append(seconds / len(specs))
                with running(side, [ProcessSpec("env-server", serve)], {}) as (url,):
                    time_episodes(url, 4)
                    figures.setdefault(f"{name}_episode_ms", []).append(time_episodes(url, options.episodes))
        begun = time.perf_counter()
    closed_s = time.perf_counter() - begun
    found = {name: round(statistics.median(values[1:]), 4) for name, values in figures.items()}
    extra = found["ray_episode_ms"] - found["local_episode_ms"]
    return {
        **found,
        "cluster_and_placement_s": round(placed_s, 2),
        "give_back_s": round(closed_s, 2),
        "extra_episode_ms": round(extra, 4),
        "episode_spread_ms": round(max(figures["local_episode_ms"][1:]) - min(figures["local_episode_ms"][1:]), 4),
    }


def main() -> None:
    options = read_options(__doc__, processes=4, rounds=5, episodes=32)
    if find_spec("ray") is None:
        print_result("ray_launcher", skipped="Ray is not installed")
        return
    print_result("ray_launcher", processes=options.processes, **measure(options), ray=version("ray"))


if __name__ == "__main__":
    main()
