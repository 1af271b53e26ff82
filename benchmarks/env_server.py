"""Turns per second through `envgym serve` on loopback, beside OpenEnv's server, and what a turn costs above in-process.

Run: python -m benchmarks.env_server [--rounds 5]. Prints one JSON line. The env echoes the action; OpenEnv's, where
`openenv-core` is installed (.venv-speed/bin/python), does the same, with its own server and client, which is async: so
its sessions share one event loop, while ours are called from a thread each. Server and client are two processes; the
sides take turns, and medians over the rounds count. Targets on two cores: at least 3,000 turns per second in one
session and 7,000 over 16, 512 sessions held, at most 1.5 ms per turn above in-process with 256 episodes at a time.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from threading import Barrier, Thread
from typing import Any, Final, NamedTuple

import envgym
from benchmarks._options import print_result, read_options
from envgym.agents.rollout.episode import EpisodeEnv, EpisodeJob
from envgym.authoring.sources import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.records import Reply

_HELD: Final = 512
TARGETS: Final = {"one_per_s": 3000, "sixteen_per_s": 7000, "above_in_process_ms": 1.5, "held": _HELD}
ECHO: Final = "benchmarks.env_server:Echo"
TURNS: Final = 2000
"""Of a round, over all its sessions."""
_EPISODES: Final = 256
_READY_S: Final = 60.0
_OPENENV: Final = "openenv"


class Echo(Env[None]):
    """Answers with the action, for ever."""

    tasks = ListTasks([TaskDraft(prompt="Say anything.", payload={"number": number}) for number in range(20)])

    def begin(self, task: Task) -> str:
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        return Reply(observation=action.content)


# ---- servers ---------------------------------------------------------------------------------------------------------


class Served(NamedTuple):
    """A server that runs."""

    url: str
    pid: int


@contextmanager
def served(*command: str) -> Iterator[Served]:
    """Run a server whose first line is its address, and end it."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            yield Served(process.stdout.readline().strip(), process.pid)
        finally:
            process.terminate()
            process.wait(timeout=_READY_S)


def serve_openenv(port: int) -> None:
    """Serve the same env with OpenEnv's server, until the process is ended."""
    server: Any = import_module("openenv.core.env_server.http_server")  # not installed where types are checked
    interfaces: Any = import_module("openenv.core.env_server.interfaces")  # as above
    types: Any = import_module("openenv.core.env_server.types")  # as above
    uvicorn: Any = import_module("uvicorn")  # as above

    class Say(types.Action):  # type: ignore[misc]  # as above
        message: str

    class Heard(types.Observation):  # type: ignore[misc]  # as above
        message: str

    class OpenEcho(interfaces.Environment):  # type: ignore[misc]  # as above
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Heard:
            return Heard(message="Say anything.")

        def step(self, action: Say, timeout_s: float | None = None, **_: object) -> Heard:
            return Heard(message=action.message)

        @property
        def state(self) -> object:
            return types.State()

    app = server.create_fastapi_app(OpenEcho, Say, Heard, max_concurrent_envs=_HELD)
    print(f"http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


# ---- clients ---------------------------------------------------------------------------------------------------------


def time_sessions(make: Callable[[], Env[Any]], num_sessions: int) -> float:
    """Return turns per second of sessions in a thread each, from when all have begun."""
    turns = TURNS // num_sessions
    barrier = Barrier(num_sessions + 1)

    def play() -> None:
        with closing(make()) as env:
            env.reset(seed=0)
            barrier.wait()
            for _ in range(turns):
                env.step("hello")
            barrier.wait()

    threads = [Thread(target=play) for _ in range(num_sessions)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - started
    for thread in threads:
        thread.join()
    return turns * num_sessions / seconds


async def time_openenv(url: str, num_sessions: int, field: str = "message") -> float:
    """Return turns per second of OpenEnv's own client, its sessions in one event loop; `field` holds the text."""
    client: Any = import_module("openenv.core.generic_client")  # not installed where types are checked
    turns = TURNS // num_sessions
    envs = [client.GenericEnvClient(base_url=url) for _ in range(num_sessions)]

    async def play(env: Any) -> None:  # as above
        for _ in range(turns):
            await env.step({field: "hello"})

    for env in envs:
        await env.connect()
        await env.reset()
    started = time.perf_counter()
    await asyncio.gather(*map(play, envs))
    seconds = time.perf_counter() - started
    for env in envs:
        await env.close()
    return turns * num_sessions / seconds


async def time_rollout(make: Callable[[], Env[Any]], turns: int) -> float:
    """Return milliseconds of wall time per turn of episodes at a time, as rollouts call their envs."""
    task = make().unwrapped.tasks.task(Split.TRAIN, 0)
    jobs = [EpisodeJob(make_env=make, task=task, seed=0, tree_id=str(n), env_id="echo") for n in range(_EPISODES)]
    envs = [EpisodeEnv(job) for job in jobs]

    async def play(env: EpisodeEnv) -> None:
        for _ in range(turns):
            await env.step(Action("hello"))

    await asyncio.gather(*(env.reset() for env in envs))
    started = time.perf_counter()
    await asyncio.gather(*map(play, envs))
    seconds = time.perf_counter() - started
    await asyncio.gather(*(env.close() for env in envs))
    return 1e3 * seconds / (turns * _EPISODES)


def hold_sessions(make: Callable[[], Env[Any]]) -> int:
    """Open as many sessions as a server has, play a turn in each, and return in how many it came back."""
    envs = [make() for _ in range(_HELD)]
    for env in envs:
        env.reset(seed=0)
    held = sum(env.step("hello").observation == "hello" for env in envs)
    for env in envs:
        env.close()
    return held


def measure(rounds: int) -> dict[str, Any]:
    """Measure all sides in turns."""
    figures: dict[str, list[float]] = {}
    with ExitStack() as stack:
        url = stack.enter_context(served("-m", "envgym", "serve", ECHO, "--port", "0")).url.removesuffix(f"/{ECHO}")
        local, remote = partial(envgym.make, ECHO), partial(envgym.make, f"{url}/{ECHO}")
        sides: dict[str, Callable[[], float]] = {
            "one_per_s": lambda: time_sessions(remote, 1),
            "sixteen_per_s": lambda: time_sessions(remote, 16),
            "rollout_ms": lambda: asyncio.run(time_rollout(remote, 8)),
            "in_process_ms": lambda: asyncio.run(time_rollout(local, 8)),
        }
        if find_spec(_OPENENV) is not None:
            other = stack.enter_context(served("-m", "benchmarks.env_server", "--openenv-port", "8790")).url
            wait_for(other)
            sides |= {
                "openenv_one_per_s": lambda: asyncio.run(time_openenv(other, 1)),
                "openenv_sixteen_per_s": lambda: asyncio.run(time_openenv(other, 16)),
            }
        held = hold_sessions(remote)
        for _ in range(rounds + 1):  # the first warms up
            for name, side in sides.items():
                figures.setdefault(name, []).append(side())
    found = {name: statistics.median(values[1:]) for name, values in figures.items()}
    found["above_in_process_ms"] = found["rollout_ms"] - found["in_process_ms"]
    for name in ("one_per_s", "sixteen_per_s"):
        if f"openenv_{name}" in found:
            found[f"times_openenv_{name.removesuffix('_per_s')}"] = found[name] / found[f"openenv_{name}"]
    return {**{name: round(value, 4 if "ms" in name else 1) for name, value in found.items()}, "held": held}


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    httpx: Any = import_module("httpx")
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        with suppress(httpx.TransportError):
            httpx.get(f"{url}/health")
            return
        time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


def main() -> None:
    """Measure and print; with a port, serve OpenEnv's side."""
    options = read_options(__doc__, rounds=5, openenv_port=0)
    if options.openenv_port:
        serve_openenv(options.openenv_port)
        return
    versions = {"openenv": version("openenv-core")} if find_spec(_OPENENV) is not None else {}
    print_result("env_server", **measure(options.rounds), targets=TARGETS, versions=versions)


if __name__ == "__main__":
    main()
