"""How busy a sampler is kept, and episodes per second, event-driven and in lock step: no model, a simulated sampler.

Run: python -m benchmarks.collector [--episodes 640] [--turns 4] [--concurrency 64] [--service-ms 20]
Prints one line of JSON. The sampler serves one request at a time in a fixed time; an env step takes a random 50 to
2,000 ms, the same for both ways. `expected_busy` is what so many episodes can ask for: concurrency x service / (service
+ mean step), at most 1; the episodes begin and end together, which costs some of it, the less the more there are.
"""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks._options import print_result, read_options
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.agents.rollout.episode import EpisodeJob
from envgym.core.messages import Action
from envgym.core.tree import Tree
from envgym.records import Reply
from tests.support.parrots import Parrot, char_agent, parrot_job, run_episodes, said

STEP_S = (0.05, 2.0)


class Server(ScriptedPolicy):
    """Serves one request after the other, each in the same time."""

    def __init__(self, service_s: float) -> None:
        super().__init__(lambda request: said("a"))
        self._service_s, self._place = service_s, asyncio.Lock()
        self.busy_s = 0.0

    async def generate(self, request: GenerateRequest) -> Generation:
        """Wait for the ones before, and be served."""
        async with self._place:
            started = time.perf_counter()
            await asyncio.sleep(self._service_s)
            self.busy_s += time.perf_counter() - started
        return await super().generate(request)


class LockStep(ScriptedPolicy):
    """Passes requests on only when everything under way has one."""

    def __init__(self, policy: ScriptedPolicy, num_active: Callable[[], int]) -> None:
        """Hold back what `policy` is asked until so many requests wait."""
        super().__init__(())
        self._policy, self._num_active = policy, num_active
        self._waiting: list[asyncio.Future[None]] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        """Wait for the requests of the others."""
        loop = asyncio.get_running_loop()
        self._waiting.append(loop.create_future())
        loop.call_soon(self.open)  # not at once: then the last to arrive would be sent before the others
        await self._waiting[-1]
        return await self._policy.generate(request)

    def open(self) -> None:
        """Let all go that wait, if nothing else is under way."""
        if len(self._waiting) >= self._num_active():
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()


class Slow(Parrot):
    """An env whose steps take their time, in a thread of its own."""

    blocking = True

    def __init__(self, draw: random.Random, turns: int) -> None:
        super().__init__(max_turns=turns)
        self._seconds = [draw.uniform(*STEP_S) for _ in range(turns)]

    def respond(self, action: Action) -> Reply:
        time.sleep(self._seconds.pop())
        return super().respond(action)


class Found(NamedTuple):
    """One way of driving."""

    episodes_per_s: float
    busy: float


def drive(make_jobs: Callable[[], list[EpisodeJob]], *, service_s: float, concurrency: int, lock_step: bool) -> Found:
    async def work() -> Found:
        server, jobs = Server(service_s), make_jobs()
        num_left = len(jobs)
        started = time.perf_counter()
        gate = LockStep(server, lambda: min(concurrency, num_left))

        def finish(tree: Tree) -> None:
            nonlocal num_left
            num_left -= 1
            asyncio.get_running_loop().call_soon(gate.open)

        policy = gate if lock_step else server
        await run_episodes(jobs, char_agent(), policy, concurrency=concurrency, on_finished=finish)
        seconds = time.perf_counter() - started
        return Found(len(jobs) / seconds, server.busy_s / seconds)

    return asyncio.run(work())


def main() -> None:
    options = read_options(__doc__, episodes=640, turns=4, concurrency=64, service_ms=20.0)

    def jobs() -> list[EpisodeJob]:
        return [
            parrot_job(partial(Slow, random.Random(number), options.turns), seed=number, tree_id=str(number))
            for number in range(options.episodes)
        ]

    service_s = options.service_ms / 1000
    event, lock = (
        drive(jobs, service_s=service_s, concurrency=options.concurrency, lock_step=lock_step)
        for lock_step in (False, True)
    )
    print_result(
        "collector",
        event_driven=event._asdict(),
        lock_step=lock._asdict(),
        ratio=event.episodes_per_s / lock.episodes_per_s,
        expected_busy=min(1.0, options.concurrency * service_s / (service_s + sum(STEP_S) / 2)),
    )


if __name__ == "__main__":
    main()
