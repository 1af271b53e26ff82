"""Servers of OpenEnv's own package, for tests of our client: run as a program of the environment that has the package.

    python openenv_real_server.py KIND

It prints its port. KIND is `text` (one text field), `typed` (several fields), `tools` (a FastMCP server as an env), or
`tasks` (as text, with the task API).
"""

# The package is not installed where types are checked.
# mypy: disable-error-code="misc, override, untyped-decorator"

import socket
import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str
    loud: bool = False


class Heard(Observation):
    echoed: str


class Move(Action):
    x: int
    y: int


class Board(Observation):
    board: list[list[int]]
    note: str = "moved"


class Base(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=self.count)

    count = 0


class Echo(Base):
    """Echoes; the third turn is the last, pays 1.0, and nothing at all if it says `unpaid`."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        self.count = 0
        return Heard(echoed=f"Say something. Seed {seed}.")

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        if action.message == "crash":
            raise RuntimeError("the env crashed")
        self.count += 1
        done = self.count == 3
        reward = None if not done or action.message == "unpaid" else 1.0
        return Heard(echoed=action.message, reward=reward, done=done)


class TaskEcho(Echo):
    """The same, with two splits of tasks."""

    def reset(self, split: str = "train", index: int = 0, **_: Any) -> Heard:
        self.count = 0
        return Heard(echoed=f"Task {split} {index}.")

    def list_splits(self) -> list[str]:
        return ["train", "validation"]

    def num_tasks(self, split: str) -> int:
        return {"train": 5, "validation": 2}[split]


class Grid(Base):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Board:
        return Board(board=[[0, 0], [0, 0]], note="start")

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Board:
        board = [[0, 0], [0, 0]]
        board[action.y][action.x] = 1
        return Board(board=board, reward=0.5, done=action.x == action.y == 1)


class Adder(MCPEnvironment):
    """A FastMCP server whose tools are the actions."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("adder")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(done=False, reward=0.0)

    def step(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        observation = super().step(action, timeout_s=timeout_s)
        return self._paid(observation)

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return self._paid(await super().step_async(action, timeout_s=timeout_s))

    def _paid(self, observation: Observation) -> Observation:
        if isinstance(observation, CallToolObservation) and observation.error is None:
            observation.reward, observation.done = 1.0, True
        return observation

    @property
    def state(self) -> State:
        return State()


KINDS = {
    "text": (Echo, Say, Heard),
    "tasks": (TaskEcho, Say, Heard),
    "typed": (Grid, Move, Board),
    "tools": (Adder, CallToolAction, CallToolObservation),
}

if __name__ == "__main__":
    env, action, observation = KINDS[sys.argv[1]]
    app = create_fastapi_app(env, action, observation, max_concurrent_envs=64, env_name=sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
