"""An environment on an OpenEnv server, by the id `openenv://HOST:PORT` or `openenv://HOST:PORT/NAME`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from time import monotonic, sleep
from typing import Any

import numpy as np

from envgym.authoring.sources import GeneratedTasks, TaskDraft, check_index
from envgym.chats.openai import read_openai
from envgym.config.arguments import read_bounds
from envgym.connect.openenv_client import Address, Connection, Description, TextForm, call_data, describe, read_tools
from envgym.connect.openenv_frames import ErrorCode, ErrorReply, Json, Observed
from envgym.core.json_types import JsonObject
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Split, Task
from envgym.core.turns import ZERO, Ending, Invalid, Reward, Scored, total
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InvalidInput, ToolError
from envgym.records import Reply, StepRecord
from envgym.serving.held_session import pauses
from envgym.tools import Tool, ToolSpec

MAX_TURNS = 100
"""Turns unless the settings say otherwise; a server does not say when it ends an episode."""
KEPT_S = 5.0
"""Seconds for which the description of a server is kept."""
_TRUNCATIONS = {ending.value: ending for ending in Ending if ending.name.startswith("TRUNCATED_")}
_UNKNOWN = "the environment is on a server of another project, which does not declare it"


class ServerTasks:
    """The tasks that a server counts; what they are, it shows at a reset."""

    def __init__(self, name: str, description: Description) -> None:
        self._name, self._splits, self._sizes = name, description.splits or {}, description.sizes

    def size(self, split: Split) -> int | None:
        return self._sizes[split]

    def task(self, split: Split, index: int) -> Task:
        """Return a task. Raises: InvalidInput: beyond the end of the split."""
        check_index(index, self.size(split), f"{split} of {self._name}")
        payload: JsonObject = {"env": self._name, "split": self._splits[split], "index": index}
        prompt = f"{self._name}, {self._splits[split]} {index}"
        return Task(id=f"{split}/{index}", prompt=prompt, payload=payload, split=split)


@dataclass(slots=True)
class OpenEnvEpisode:
    """An episode so far."""

    rewards: list[Reward] = field(default_factory=list)
    """Of the steps of this turn."""
    is_done: bool = False
    truncation: Ending | None = None
    """How the episode ended, if the server reports that a limit ended it; servers of envgym do."""


class OpenEnvEnv(Env[OpenEnvEpisode]):
    """The client's side of an environment on an OpenEnv server; a session is opened at the first reset."""

    blocking = True
    unchecked = {  # noqa: RUF012  # a constant of the class
        "oracle_reaches_optimum": _UNKNOWN,
        "chance_stays_at_declared": _UNKNOWN,
        "answer_is_hidden": "a task is a seed, or a number on the server",
        "survives_pickle": "a session of the server cannot be copied",
    }

    def __init__(
        self,
        env_id: str,
        /,
        *,
        tls: bool = False,
        observation: str | None = None,
        splits: Mapping[str, str] | None = None,
        reward_none: float | None = None,
        instructions: str = "",
        reward_range: Sequence[float] = (0.0, 1.0),
        deterministic: bool = False,
        timeout_s: float = 60.0,
        max_turns: int | None = MAX_TURNS,
        render_mode: str | None = None,
    ) -> None:
        """Request from the server what the environment is.

        Args:
            env_id: `openenv://`, host and port, and the path of the environment if the server has several.
            tls: whether the server is behind https, as Hugging Face Spaces are.
            observation: a Jinja template that writes the fields of an observation as text; None: the field `text`, or
                the only field if it is a text, or else all fields as JSON.
            splits: `train` and `test` -> names of the server's splits; None: by their names and types.
            reward_none: the reward of an episode that the server ends without one; None: it is invalid.
            instructions: the system message.
            reward_range: bounds of the reward of an episode, which `envgym check` tests.
            deterministic: whether the same seed and actions give the same episode, so that forks can replay it.
            timeout_s: longest wait for an answer, in seconds.
            max_turns: turns until the episode is cut; None: no limit.
            render_mode: as for any env.

        Raises: InvalidInput: no OpenEnv server answers, its actions cannot be written, or a setting is wrong.
        """
        if find_spec("websockets") is None:
            do = "pip install 'envgym[openenv]'"
            raise InvalidInput.of(env_id, "find what it imports", "no websockets", where="make", do=do)
        if not timeout_s > 0:
            raise InvalidInput.of("timeout_s", "be above 0", timeout_s, where=env_id, do="pass e.g. 60")
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.reward_range = read_bounds("reward_range", reward_range, where=env_id)
        self._address = Address.parse(env_id, tls=tls)
        self._description = described(self._address, None if splits is None else tuple(splits.items()), timeout_s)
        self._write, self._has_template = _template(observation, env_id), observation is not None
        self._reward_none, self._timeout_s = reward_none, timeout_s
        self._instructions = self.system_prompt = instructions
        self._tools = self._description.tools
        self._connection: Connection | None = None
        fork_capability = ForkCapability.REPLAY if deterministic else ForkCapability.NONE
        self.fork_capability = fork_capability  # type: ignore[misc]  # of each env
        name = self._address.name or "openenv"
        seeds = GeneratedTasks(partial(_draw_seed, name), name=name)
        self.tasks = seeds if self._description.splits is None else ServerTasks(name, self._description)

    def begin(self, task: Task) -> Observation:
        """Reset the environment on the server, with the seed of the task or its number."""
        data = {key: task.payload[key] for key in ("seed", "split", "index") if key in task.payload}
        if "seed" not in data:  # a server's task may still need random numbers
            data["seed"] = int(self.np_random.integers(2**31))
        observed = self._reset(data)
        if observed.done:
            must, do = "begin with an episode that continues", "correct reset of the server"
            raise EnvFailure.of("reset", must, "done", where=self._address.url, do=do)
        self.state = OpenEnvEpisode()
        form, fields = self._description.form, observed.observation
        if isinstance(form, TextForm) and form.takes_calls and "tools" in fields:
            self._tools = self._read_tools(fields["tools"])
        server_prompt = fields.get("system_prompt")
        parts = (self._instructions, server_prompt if isinstance(server_prompt, str) else "")
        self.system_prompt = "\n\n".join(part for part in parts if part)
        messages = () if self._has_template else _spoken_messages(fields)
        return Observation.of(messages) if messages else Observation(self._write(fields))

    def respond(self, action: Action) -> Reply:
        """Send the text as an action, if the actions are texts."""
        form = self._description.form
        if not isinstance(form, TextForm):
            names = ", ".join(item.name for item in self._tools)
            return Reply(observation=f"Nothing was done: call one of the tools {names}.")
        fields = self._step({form.field: action.content})
        return Reply(observation=self._write(fields), reward=self._take_reward(), terminated=self.state.is_done)

    def _play(self, action: Action) -> StepRecord:
        """Play one turn; a limit of the server ends the episode as such."""
        record = super()._play(action)
        truncation = self.state.truncation
        is_cut = truncation is not None and record.ending is Ending.TERMINATED
        return replace(record, ending=truncation) if is_cut else record

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tools that the server lists; they run there."""
        return {spec.name: _tool(spec) for spec in self._tools}

    def call_tool(self, name: str, arguments: JsonObject) -> str:
        """Call a tool on the server. Raises: ToolError: it refuses. EnvFailure: the server fails."""
        if self.state.is_done:
            raise ToolError("Not run: the episode is over.")
        try:
            fields = self._step(call_data(self._description.form, name, arguments))
        except ErrorReply as error:
            if error.code != ErrorCode.VALIDATION_ERROR:
                raise
            raise ToolError(str(error)) from error
        if "tool_name" not in fields:
            if fields.get("tool_errors"):
                raise ToolError(self._write(fields))
            return self._write(fields)
        if failure := fields.get("error"):
            raise ToolError(str(failure.get("message") if isinstance(failure, dict) else failure))
        return _result_text(fields.get("result"))

    def after_tools(self, observation: Observation) -> Reply:
        """Pay what the server paid for the calls of this turn."""
        return Reply(observation=observation, reward=self._take_reward(), terminated=self.state.is_done)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_tools(self, items: object) -> tuple[ToolSpec, ...]:
        try:
            return read_tools(items, where=self._address.url)
        except InvalidInput as error:
            raise EnvFailure(str(error)) from error

    def _step(self, data: Json) -> Json:
        """Play a step; return the fields of its observation. Raises: ErrorReply, EnvFailure: the server fails."""
        if self._connection is None:
            must, do = "have its session", "begin the episode again"
            raise EnvFailure.of("step", must, "none", where=self._address.url, do=do)
        try:
            observed = self._connection.ask("step", data)
        except EnvFailure as error:
            if not isinstance(error, ErrorReply):
                self.close()
            raise
        self.state.is_done = observed.done
        self.state.truncation = _TRUNCATIONS.get(str(observed.observation.get("ending")))
        self.state.rewards.append(_reward_of(observed, self._reward_none, where=self._address.url))
        return observed.observation

    def _take_reward(self) -> Reward:
        rewards, self.state.rewards = self.state.rewards, []
        return total(rewards)

    def _reset(self, data: Json) -> Observed:
        """Reset in the session, or in a new one if there is none any more; wait for a free one.

        Raises: EnvFailure: the server fails, or has no free session for too long.
        """
        if self._connection is not None:
            try:
                return self._connection.ask("reset", data)
            except EnvFailure as error:  # the server may have ended a session that nobody played
                if isinstance(error, ErrorReply) and error.code != ErrorCode.SESSION_ERROR:
                    raise
                self.close()
        waits = pauses()
        while True:
            self._connection = Connection(self._address, self._timeout_s)
            try:
                return self._connection.ask("reset", data)
            except EnvFailure as error:
                self.close()
                is_full = isinstance(error, ErrorReply) and error.code == ErrorCode.CAPACITY_REACHED
                if not is_full or (pause_s := next(waits, None)) is None:
                    raise
                sleep(pause_s)


def described(address: Address, splits: tuple[tuple[str, str], ...] | None, timeout_s: float) -> Description:
    """Return the description of an environment on a server, at most `KEPT_S` old. Raises: InvalidInput: as `describe`.

    An env is made for each episode; a server that was restarted with another environment must be noticed.
    """
    return _described_at(int(monotonic() / KEPT_S), address, splits, timeout_s)


@lru_cache(maxsize=64)
def _described_at(
    _period: int, address: Address, splits: tuple[tuple[str, str], ...] | None, timeout_s: float
) -> Description:
    return describe(address, splits=None if splits is None else dict(splits), timeout_s=timeout_s)


def _draw_seed(name: str, rng: np.random.Generator) -> TaskDraft:
    seed = int(rng.integers(2**31))
    return TaskDraft(prompt=f"{name}, seed {seed}", payload={"env": name, "seed": seed})


def _reward_of(observed: Observed, reward_none: float | None, *, where: str) -> Reward:
    """Return the reward of a step: without a number it is 0 during an episode, and invalid at its end."""
    value = observed.reward
    if value is None:
        if not observed.done:
            return ZERO
        value = reward_none
    if value is None or not np.isfinite(value):
        do = "let the server pay a number, or set reward_none"
        reason = EnvFailure.of("reward at the end of an episode", "be a number", value, where=where, do=do)
        return Invalid(cause=Ending.ERROR_ENV, reason=str(reason))
    return Scored(value=value)


def _tool(spec: ToolSpec) -> Tool:
    def call(owner: object, arguments: JsonObject) -> object:
        assert isinstance(owner, OpenEnvEnv), "the tools are its own"
        return owner.call_tool(spec.name, arguments)

    return Tool(spec=spec, call=call)


# ---- observations as text --------------------------------------------------------------------------------------------


def _template(source: str | None, where: str) -> Callable[[Json], str]:
    """Return the function that writes an observation as text. Raises: InvalidInput: the template cannot be read."""
    if source is None:
        return observation_text
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(source)
    except TemplateError as error:
        must, do = "be a Jinja template", "correct it"
        raise InvalidInput.of("observation", must, f"{source!r}: {error}", where=where, do=do) from error

    def write(fields: Json) -> str:
        try:
            return template.render(**fields)
        except (TemplateError, TypeError) as error:
            must, do = f"have the fields of the template, not only {', '.join(fields)}", "correct the template"
            raise EnvFailure.of("observation", must, str(error), where=where, do=do) from error

    return write


def observation_text(fields: Mapping[str, Any]) -> str:
    """Write an observation: its field `text`, or its only field if that is a text, or else all of them as JSON."""
    others = {name: value for name, value in fields.items() if name != "metadata" and value is not None}
    if not others:
        others = dict(fields.get("metadata") or {})
    text = others.get("text") if "text" in others else next(iter(others.values()), "") if len(others) < 2 else None
    return text if isinstance(text, str) else json.dumps(others, ensure_ascii=False)


def _spoken_messages(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the conversation in the field `messages`, without its system message; empty if it is none."""
    items = fields.get("messages")
    try:
        messages = [read_openai(item, where="reset") for item in items] if isinstance(items, list) else []
    except InvalidInput:  # the field of another project
        return ()
    spoken = tuple(message for message in messages if message.role is not Role.SYSTEM)
    return spoken if {message.role for message in spoken} <= {Role.USER, Role.ASSISTANT} else ()


def _result_text(result: object) -> str:
    """Write the result of a tool: its text, its content in the form of MCP, or else JSON."""
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(str(text) for text in texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
