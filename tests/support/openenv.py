"""An OpenEnv server in a thread of this process, and a client of its frames."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

import envgym
from envgym.connect.openenv_server import OpenEnvServer
from envgym.core.messages import Action
from envgym.runtime.event_loop import LoopThread
from envgym.serving.sessions import SessionLimits
from envgym.serving.templates import Templates

WAIT_S = 60.0


@contextmanager
def openenv_server(
    *env_ids: str,
    token: str | None = None,
    limits: SessionLimits | None = None,
    settings: Mapping[str, Any] | None = None,
    num_open: int = 0,
) -> Iterator[OpenEnvServer]:
    """Serve environments until the block ends; then all envs but `num_open` must be closed."""
    thread = LoopThread("openenv-server")
    server = OpenEnvServer(Templates(env_ids, settings or {}), token=token, limits=limits)
    left: list[int] = []

    async def close() -> None:
        left.append(await server.close())

    try:
        thread.run(server.listen("127.0.0.1", 0))
        yield server
    finally:
        thread.run(close())
        thread.close(_nothing())
    assert left == [num_open]


async def _nothing() -> None:
    pass


class Client:
    """A connection that sends frames and reads the answers."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, text: str | bytes) -> Any:
        """Send a frame as it is; return the decoded answer."""
        self.connection.send(text)
        return self.read()

    def read(self) -> Any:
        return json.loads(self.connection.recv(timeout=WAIT_S))

    def ask(self, kind: str, data: object = None) -> Any:
        """Send a frame; return its answer."""
        return self.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))

    def observe(self, kind: str, data: object = None) -> Any:
        """Send a frame; return the data of the observation that answers it."""
        answer = self.ask(kind, data)
        assert answer["type"] == "observation", answer
        return answer["data"]

    def refuse(self, kind: str, data: object = None) -> tuple[str, str]:
        """Send a frame that must be refused; return code and message."""
        return error_of(self.ask(kind, data))


def error_of(answer: Any) -> tuple[str, str]:
    assert answer["type"] == "error", answer
    return answer["data"]["code"], answer["data"]["message"]


@contextmanager
def client_of(server: OpenEnvServer, path: str = "/ws", **headers: str) -> Iterator[Client]:
    url = server.url.replace("http", "ws", 1) + path
    with connect(url, additional_headers=headers, open_timeout=WAIT_S, close_timeout=WAIT_S, proxy=None) as connection:
        yield Client(connection)


def step_data(action: str) -> dict[str, Any]:
    """Return an action in the form of the server's schema."""
    if isinstance(action, Action) and action.tool_calls:
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in action.tool_calls]
        return {"text": str(action), "tool_calls": calls}
    return {"text": str(action)}


def oracle_episode(env_id: str, seed: int, **settings: Any) -> list[tuple[str, str, float, bool]]:
    """Return (action, observation, reward, done) of each turn of a local oracle's episode."""
    env: envgym.Env[Any] = envgym.make(env_id, **settings)
    try:
        turns = [("", str(env.reset(seed=seed).observation), 0.0, False)]
        while not turns[-1][3]:
            action = env.oracle()
            result = env.step(action)
            done = result.terminated or result.truncated
            turns.append((action, str(result.observation), float(result.reward), done))
    finally:
        env.close()
    return turns
