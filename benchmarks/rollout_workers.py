"""Turns per second with one, two and four rollout workers, and what bounds them.

Run: python -m benchmarks.rollout_workers [--workers 1 2 4] [--episodes 512] [--turns 8] [--rounds 3]. Prints one JSON
line.

There are as many policy servers as workers, which answer at once, in processes of their own, and an environment that
echoes, in the worker. Loop, rendering, the client of the policy server, the audit and the journal run in the workers;
this process orders trees and reads them. The numbers of workers take turns in each round; medians over the rounds.

`turns_per_s` is by the wall clock, which needs a core for each process. `turns_per_core_s` counts processor time
instead: the turns over the processor time of the process of the run or of a worker that took most, that is the rate of
these processes if each has a core. `speedup` and `core_speedup` are over the first number of workers.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks._options import print_result, read_options
from benchmarks.env_server import ECHO, Echo
from benchmarks.policy_server import OtherProcess, processor_s
from benchmarks.scaling import TOKENS, Talker
from envgym.agents.policies.serving.client import ClientLimits
from envgym.agents.policies.serving.following import FollowingPolicy
from envgym.agents.policies.serving.link import ExpectedModel
from envgym.agents.policies.serving.weights_state import WeightsState
from envgym.agents.rollout.pool import RolloutPool
from envgym.core.tasks import Split
from envgym.core.version import __version__
from envgym.runtime.garbage import rare_collections
from envgym.trainer.env_source import EnvSource
from envgym.trainer.launch.workers.addresses import WorkerAddresses
from envgym.trainer.launch.workers.fleet import RolloutWorkers
from envgym.trainer.launch.workers.parts import PartsResources, WorkerParts
from envgym.trainer.launch.workers.server import RolloutWorker
from envgym.trainer.launch.workers.wire import GrownTree, WorkerSetup
from envgym.trainer.methods.protocols import TaskRequest
from envgym.trainer.rollout.journal import TurnJournal
from envgym.trainer.rollout.trees import TreeOrder
from envgym.trainer.settings import train_settings
from tests.support.parrots import char_agent
from tests.support.tiny_runs import tiny_settings

GROUP_SIZE = 8


class Rate(NamedTuple):
    """What one number of workers reached."""

    turns_per_s: float
    turns_per_core_s: float
    controller_us: float
    """Processor time of this process for a turn."""
    worker_us: float
    """Processor time of all workers for a turn."""


def build(setup: WorkerSetup, resources: PartsResources) -> WorkerParts:
    """Build the parts of a worker."""
    policy = FollowingPolicy(
        setup.policy_servers,
        transport=setup.transport,
        state=setup.weights,
        expected=ExpectedModel(),
        token=None,
        limits=ClientLimits(max_concurrency=1024),
        servers=None,
    )
    resources.callback(policy.close)
    for link in policy._fleet.links:
        link.limit = link.limit.__class__(limit=1024.0, ceiling=1024)
    assert setup.journal is not None, "the benchmark has one"
    journal = TurnJournal(Path(setup.journal), run=setup.run, version=0, staleness=0, worker=f"worker-{os.getpid()}")
    resources.callback(journal.close)
    settings = train_settings(setup.settings)
    (env,) = settings.envs
    source = EnvSource(label="echo", env_id=env.id, weight=1, make=env.maker(), tasks=Echo.tasks, held_out=())
    return WorkerParts(
        settings,
        plan=setup.plan,
        env_sources={"echo": source},
        agent=char_agent(),
        policy=policy,
        follow=policy.follow,
        weights=setup.weights,
        journal=journal,
        audits=True,
        concurrency=1024,
    )


async def serve() -> None:
    """Be a worker: print the address, and serve until the process is ended."""
    worker = RolloutWorker("worker", token=None, build=build)
    with rare_collections():
        await worker.http.serve("127.0.0.1", 0, lambda url: print(url, flush=True))


@contextmanager
def started_worker() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "benchmarks.rollout_workers", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


def make_setup(servers: tuple[str, ...], journal: Path, turns: int) -> WorkerSetup:
    envs = [{"id": ECHO, "name": "echo", "settings": {"max_turns": turns}}]
    agent = {"name": "plain", "max_turn_tokens": TOKENS, "max_context_tokens": 100_000}
    return WorkerSetup(
        version=__version__,
        settings=tiny_settings(envs=envs, agent=agent).model_dump(mode="json"),
        plan=0,
        run="benchmark",
        num_workers=1,
        weights=WeightsState(0),
        policy_servers=servers,
        transport="files",
        env_servers=(),
        list_file=None,
        start_s=None,
        journal=str(journal),
        audits=True,
    )


async def play(workers: RolloutWorkers, step: int, num_episodes: int) -> None:
    """Play groups of episodes, all at a time."""
    request, task, grow = TaskRequest("echo", 0, GROUP_SIZE), Echo.tasks.task(Split.TRAIN, 0), workers.grower()
    pool = RolloutPool(concurrency=num_episodes)
    with rare_collections():
        pending = [
            pool.submit(partial(grow, TreeOrder(request=request, task=task, step=step, number=number, index=index)))
            for number in range(num_episodes // GROUP_SIZE)
            for index in range(GROUP_SIZE)
        ]
        await asyncio.gather(*[item.tree for item in pending])
        await pool.close()


class Others(NamedTuple):
    """The processes beside this one, of which a measurement uses the first."""

    servers: list[str]
    """Addresses of policy servers."""
    workers: list[str]
    pids: list[int]
    """Of the workers."""


@contextmanager
def started_processes(count: int) -> Iterator[Others]:
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(OtherProcess(None, Talker))) for _ in range(count)]
        workers = [stack.enter_context(started_worker()) for _ in range(count)]
        yield Others([item.url for item in servers], [url for url, _ in workers], [pid for _, pid in workers])


async def measure(count: int, others: Others, options: argparse.Namespace) -> Rate:
    """Return the rates with so many workers."""
    num_sampled = 0

    def take(grown: GrownTree) -> None:
        nonlocal num_sampled
        num_sampled += len(grown.sampled)

    with tempfile.TemporaryDirectory() as name:
        folder, pids = Path(name), others.pids[:count]
        TurnJournal(folder, run="benchmark", version=0, staleness=0).close()
        workers = RolloutWorkers(
            WorkerAddresses({f"rollout-worker-{number}": url for number, url in enumerate(others.workers[:count])}),
            make_setup(tuple(others.servers[:count]), folder, options.turns),
            weights=lambda: WeightsState(0),
            on_grown=take,
            token=None,
            logs=folder,
            wait_s=60.0,
        )
        await workers.set_up()
        await play(workers, 0, 8 * GROUP_SIZE)  # connections
        num_sampled = 0
        before, before_own, began = [processor_s([pid]) for pid in pids], time.process_time(), time.perf_counter()
        await play(workers, 1, options.episodes)
        seconds, own = time.perf_counter() - began, time.process_time() - before_own
        of_workers = [processor_s([pid]) - earlier for pid, earlier in zip(pids, before, strict=True)]
        await workers.close()
    return Rate(
        turns_per_s=num_sampled / seconds,
        turns_per_core_s=num_sampled / max(own, *of_workers),
        controller_us=1e6 * own / num_sampled,
        worker_us=1e6 * sum(of_workers) / num_sampled,
    )


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        asyncio.run(serve())
        return
    options = read_options(__doc__, workers=(1, 2, 4), episodes=512, turns=8, rounds=3)
    load = os.getloadavg()[0]
    rates: dict[int, list[Rate]] = {count: [] for count in options.workers}
    with started_processes(max(options.workers)) as others:
        for _ in range(options.rounds):
            for count, found in rates.items():
                found.append(asyncio.run(measure(count, others, options)))
    medians = {count: Rate(*map(statistics.median, zip(*found, strict=True))) for count, found in rates.items()}
    first = medians[options.workers[0]]
    figures = [
        {
            "workers": count,
            **{name: round(value, 1) for name, value in rate._asdict().items()},
            "speedup": round(rate.turns_per_s / first.turns_per_s, 2),
            "core_speedup": round(rate.turns_per_core_s / first.turns_per_core_s, 2),
        }
        for count, rate in medians.items()
    ]
    print_result("rollout_workers", rates=figures, load_before=round(load, 1))


if __name__ == "__main__":
    main()
