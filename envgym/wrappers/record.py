"""Writes what happened to a JSONL file: one line per episode, written whole or not at all."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envgym.core.serialize import message_to_json, reward_to_json, task_to_json
from envgym.errors import InvalidInput
from envgym.records import ResetRecord, ResetResult, StepRecord, StepResult
from envgym.wrappers.base import AnyEnv, Wrapper, record_of, reset_record_of

SCHEMA_VERSION = 2
"""Version 2: the content of a message is a list of typed parts; in version 1 it is a string."""


class Record(Wrapper):
    """Appends every episode to `path` when it ends, or when it is left (reset, close).

    A fork writes its own line, which begins with the turns it shares. Several processes may append to one file.
    """

    def __init__(self, env: AnyEnv, path: str | os.PathLike[str]) -> None:
        """Wrap `env`.

        Args:
            env: Any env.
            path: JSONL file that the episodes are appended to.

        Raises: InvalidInput: the folder of `path` does not exist.
        """
        super().__init__(env)
        self.path = Path(path)
        if not self.path.parent.is_dir():
            do = "create the folder first"
            raise InvalidInput.of("path", "lie in a folder that exists", self.path, where="Record", do=do)
        self._reset: ResetRecord | None = None
        self._turns: tuple[StepRecord, ...] = ()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Write the episode that is left, then start the next."""
        self._write()
        return super().reset(seed=seed, options=options)

    def on_reset(self, result: ResetResult) -> ResetResult:
        self._reset, self._turns = reset_record_of(result), ()
        return result

    def on_step(self, action: str) -> StepResult:
        result = self.env.step(action)
        record = record_of(result)
        self._turns = (*self._turns, record)
        if record.ending is not None:
            self._write()
        return result

    def close(self) -> None:
        """Write the episode that is left, and close the env."""
        self._write()
        super().close()

    def _write(self) -> None:
        """Append the open episode in one write, so that lines of several writers never mix."""
        if self._reset is None:
            return
        line = (json.dumps(episode_to_json(self.name, self._reset, self._turns)) + "\n").encode()
        self._reset, self._turns = None, ()
        with self.path.open("ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError(f"{self.path} took only a part of an episode: is the disk full?")


def episode_to_json(env_id: str, reset: ResetRecord, turns: tuple[StepRecord, ...]) -> dict[str, Any]:  # JSON
    """Write an episode as plain JSON types; `ending` is null where it was left unfinished."""
    return {
        "schema": SCHEMA_VERSION,
        "env_id": env_id,
        "seed": reset.seed,
        "task": task_to_json(reset.task),
        "system_prompt": reset.system_prompt,
        "tools": [tool.name for tool in reset.tools],
        "messages": [message_to_json(message) for message in reset.observation.messages],
        "turns": [_turn_to_json(turn) for turn in turns],
        "ending": turns[-1].ending if turns else None,
    }


def _turn_to_json(record: StepRecord) -> dict[str, Any]:  # JSON
    return {
        "action": str(record.action),
        "action_message": message_to_json(record.action.message),
        "malformed": list(record.action.malformed),
        "observation": str(record.observation),
        "messages": [message_to_json(message) for message in record.observation.messages],
        "reward": reward_to_json(record.reward),
        "tool_calls": record.tool_calls,
        "tool_errors": record.tool_errors,
        "error": record.error,
    }


def read_episodes(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:  # JSON
    """Yield the episodes of a file as JSON; `message_from_json` reads the messages of every schema version.

    Raises: InvalidInput: a line is no episode of a schema version known here.
    """
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                episode = json.loads(line)
                version = episode["schema"]
            except (ValueError, KeyError, TypeError):
                episode, version = {}, None
            if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
                where, do = f"{path}:{number}", "read it with the version of envgym that wrote it"
                raise InvalidInput.of("schema", f"be 1..{SCHEMA_VERSION}", version, where=where, do=do)
            yield episode
