"""Envs for tests of the environment server, and a server of them in a thread of this process."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import envgym
from envgym import Action, Env, Reply, Split, Task
from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.runtime.http.server import HttpLimits
from envgym.serving.client import ServerClient
from envgym.serving.server import EnvServer
from envgym.serving.sessions import SessionLimits
from envgym.serving.templates import ClientRights, Templates

SECRET = "the-hidden-answer-of-task"
HERE = "tests.support.env_server"


class SecretTasks:
    """Three tasks of each split whose payloads and metadata hold a secret."""

    def size(self, split: Split) -> int:
        return 3

    def task(self, split: Split, index: int) -> Task:
        InvalidInput.unless(0 <= index < 3, "task", "be one of 3", index, where=split.value, do="take another")
        payload = {"answer": f"{SECRET}-{split}-{index}"}
        return Task(
            id=f"{split}/{index}", prompt=f"Say {index}.", payload=payload, split=split, metadata={"key": payload}
        )


class Counter(Env[int]):
    """Counts its turns, over all of them; words make it wait, fail, or end."""

    tasks = SecretTasks()
    open_envs: ClassVar[set[int]] = set()
    """Envs that began an episode and were not closed."""

    def begin(self, task: Task) -> str:
        self.state = 0
        self.open_envs.add(id(self))
        return f"{task.prompt} {self.np_random.integers(1000)}"

    def respond(self, action: Action) -> Reply:
        self.state += 1
        word, _, number = action.content.partition(" ")
        if word == "wait":
            time.sleep(float(number))
        elif word == "fail":
            raise ToolInfraFailure("the disk is full")
        return Reply(observation=f"turn {self.state}", reward=0.5, terminated=word == "end")

    def oracle(self) -> str:
        assert self.task.metadata.get("key", self.task.payload) == self.task.payload
        return f"end {self.task.payload['answer']}"

    def close(self) -> None:
        self.open_envs.discard(id(self))


class SlowCounter(Counter):
    blocking = True


class Breakable(Counter):
    """The same, whose constructor fails where it is told to."""

    def __init__(self, *, is_broken: bool = False) -> None:
        super().__init__()
        if is_broken:
            raise ZeroDivisionError("the constructor is broken")


BREAKABLE = f"{HERE}:Breakable"
COUNTER, SLOW_COUNTER = f"{HERE}:Counter", f"{HERE}:SlowCounter"


@contextmanager
def serve_envs(
    *words: str, sends: signal.Signals = signal.SIGTERM, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Run `envgym serve` on a free port until the block ends, and yield its address; a signal must end it cleanly."""
    command = [sys.executable, "-m", "envgym", "serve", *words, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **variables}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield "/".join(process.stdout.readline().split("/")[:3])
        finally:
            process.send_signal(sends)
            try:
                _, messages = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 128 + sends
        assert "interrupted; " in messages
        assert "were ended" in messages
        assert "did not close" not in messages


@contextmanager
def running_server(
    *env_ids: str,
    token: str | None = None,
    limits: SessionLimits | None = None,
    http_limits: HttpLimits | None = None,
    has_oracle: bool = True,
    port: int = 0,
    settings: Mapping[str, Any] | None = None,
    rights: ClientRights | None = None,
) -> Iterator[EnvServer]:
    """Serve environments until the block ends; then every env must be closed."""
    server = EnvServer(
        Templates(env_ids, settings or {}, rights),
        token=token,
        limits=limits,
        http_limits=http_limits,
        has_oracle=has_oracle,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.listen("127.0.0.1", port), loop).result()
        try:
            yield server
        finally:
            assert asyncio.run_coroutine_threadsafe(server.close(), loop).result() == 0
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# ---- clients -----------------------------------------------------------------------------------------------------

WAIT_S = 60.0
SESSION = "0123456789abcdef0123456789abcdef"


def make(server: EnvServer, env_id: str = COUNTER, **settings: object) -> Env[None]:
    return envgym.make(f"{server.http.url}/{env_id}", **settings)


def connect(server: EnvServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(server.http.url.rpartition(":")[2]), timeout=WAIT_S)


def ask(server: EnvServer, path: str, data: object, **headers: str) -> tuple[int, Any]:
    with closing(connect(server)) as connection:
        connection.request("POST", path, body=json.dumps(data).encode(), headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def message_of(reply: Any) -> str:
    return str(reply["error"]["message"])


def opening(server: EnvServer, env_id: str = COUNTER) -> dict[str, Any]:
    digest = server.templates.get(env_id, {}).description["digest"]
    return {"session": SESSION, "number": 0, "env": env_id, "settings": {}, "digest": digest, "seed": 0}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


@contextmanager
def a_neighbour(server: EnvServer) -> Iterator[None]:
    """Hold a session meanwhile, which must go on as if nothing had been."""
    with closing(make(server)) as env:
        env.reset(seed=0)
        assert env.step("go").observation == "turn 1"
        yield
        assert env.step("go").observation == "turn 2"


def redirect(client: ServerClient, place: tuple[str, int]) -> None:
    """Let the new connections of a client go to another place."""
    client._place = place
    for connections in client._connections.values():
        connections._host, connections._port = place
