"""Environments of SkyRL-gym by the id `skyrl://NAME`; the rows of a data file are their tasks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from envgym.authoring.columns import read_cell
from envgym.authoring.files import FileTasks, RowLeftOut
from envgym.authoring.openings import opening_messages, read_prompt, system_text
from envgym.authoring.sources import TaskDraft
from envgym.authoring.tables import Row, Source
from envgym.chats.fields import plain_json
from envgym.chats.openai import read_openai, write_openai
from envgym.config.arguments import read_bounds
from envgym.core.json_types import canonical
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Split, Task
from envgym.env import Env, ForkCapability
from envgym.errors import EnvFailure, InvalidInput, check_known
from envgym.records import Reply, StepRecord
from envgym.runtime.cache import source_key
from envgym.runtime.error_log import log_error

SCHEME = "skyrl://"
MAX_TURNS = 100
"""Turns unless the settings say otherwise; an environment of SkyRL-gym ends its episodes itself."""
_PROMPT, _ENV_CLASS, _EXTRAS = "prompt", "env_class", "extras"
_UNKNOWN = "the environment is of another project, which does not declare it"

TextEnv = Any  # SkyRL-gym's BaseTextEnv, which has no types


class SkyrlTasks(FileTasks):
    """The rows of one environment in a data file of SkyRL; the payload holds every column that it is made with."""

    _rule, _remedy = "be of the environment", "choose another id, or correct the column env_class"

    def __init__(self, source: Source, env_class: str, **kwargs: Any) -> None:  # as FileTasks takes them
        """Prepare to read the rows whose `env_class` is this one, or missing."""
        super().__init__(source, **kwargs)
        self._env_class = env_class

    def _draft(self, row: Row, where: str) -> TaskDraft:
        if row.get(_ENV_CLASS) not in (None, self._env_class):
            raise RowLeftOut(f"env_class {row[_ENV_CLASS]}")
        cell = read_cell(row, _PROMPT, where)
        prompt, content = read_prompt(cell, what=f"column {_PROMPT!r}", where=where)
        extras = {name: value for name, value in row.items() if name not in (_PROMPT, _ENV_CLASS)}
        return TaskDraft(prompt=prompt, payload={_PROMPT: content, _EXTRAS: extras})


class SkyrlEnv(Env[TextEnv]):
    """An environment of SkyRL-gym, made anew for each episode with the columns of a row; it reads the whole text."""

    blocking = True
    fork_capability = ForkCapability.NONE
    unchecked = {  # noqa: RUF012  # a constant of the class
        "oracle_reaches_optimum": _UNKNOWN,
        "chance_stays_at_declared": _UNKNOWN,
    }

    def __init__(
        self,
        env_id: str,
        /,
        *,
        data: str | Mapping[str, str] | None = None,
        env_config: Mapping[str, Any] | None = None,
        splits: Mapping[str, str] | None = None,
        test_share: float | None = None,
        split_seed: int = 0,
        on_bad_row: str = "fail",
        instructions: str = "",
        reward_range: Sequence[float] = (0.0, 1.0),
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Read the rows, and make the environment once with the first of them.

        Args:
            env_id: `skyrl://` and the name under which SkyRL-gym knows the environment, after `module:` if a module
                registers it.
            data: a `.parquet` or `.jsonl` file of rows for SkyRL, or a mapping from split to file.
            env_config: settings of the environment, which SkyRL has under `environment.skyrl_gym`.
            splits: as for `FileTasks`.
            test_share: share of the tasks that are held out, where there is no official split; None: 0.2.
            split_seed: another seed draws another split.
            on_bad_row: `fail` refuses a row that breaks a rule, `skip` leaves such rows out and counts them in the log.
            instructions: the system message, before that of the row.
            reward_range: bounds of the reward of an episode, which `envgym check` tests.
            max_turns: turns until the episode is cut; the environment is given it as SkyRL gives it. None: 100, and
                the environment has its own limit.
            render_mode: as for any env.

        Raises: InvalidInput: skyrl-gym is not installed, has no such environment, or does not take the rows.
        """
        InvalidInput.unless(data, "data", "be given", repr(data), where=env_id, do="pass e.g. data=train.parquet")
        super().__init__(max_turns=MAX_TURNS if max_turns is None else max_turns, render_mode=render_mode)
        self.reward_range = read_bounds("reward_range", reward_range, where=env_id)
        self._env_id, self._limit = env_id, max_turns
        self._config = _json("env_config", dict(env_config or {}), env_id)
        self._instructions = self.system_prompt = instructions
        rows = {
            "source": data,
            "splits": splits,
            "test_share": test_share,
            "split_seed": split_seed,
            "on_bad_row": on_bad_row,
        }
        files = [data] if isinstance(data, str) else list((data or {}).values())
        self.tasks = _load(env_id, _json("settings", rows, env_id), self._config, tuple(map(source_key, files)))
        self.state = None

    def begin(self, task: Task) -> Observation:
        """Make the environment with the columns of the row, and show its prompt."""
        extras = plain_json(task.payload.get(_EXTRAS))
        if not isinstance(extras, dict):
            do = "take one from env.unwrapped.tasks"
            raise InvalidInput.of("task", "hold a row of SkyRL", task.id, where=self._env_id, do=do)
        self.close()
        if self._limit is not None:
            extras["max_turns"] = self._limit
        self.state = _make(self._env_id, self._config, extras)
        prompt = [write_openai(message) for message in opening_messages(task)]
        messages = _messages(self.state.init(prompt)[0], self._env_id)
        self.system_prompt = "\n\n".join(filter(None, (self._instructions, system_text(messages))))
        return Observation.of([message for message in messages if message.role is not Role.SYSTEM])

    def respond(self, action: Action) -> Reply:
        """Play a turn of text."""
        output = self.state.step(str(action))
        if not isinstance(output, Mapping) or not {"observations", "reward", "done"} <= output.keys():
            must, do = "return observations, reward and done", "correct the environment"
            raise EnvFailure.of("step", must, repr(output), where=self._env_id, do=do)
        observation = Observation.of(_messages(output["observations"], self._env_id))
        return Reply(observation=observation, reward=output["reward"], terminated=bool(output["done"]))

    def _play(self, action: Action) -> StepRecord:
        """Play one turn; the environment finds calls and thinking in the text, so none are taken out of it."""
        return replace(super()._play(Action(str(action))), action=action)

    def close(self) -> None:
        """Close the environment; its failure is logged, so that the next episode can begin."""
        state, self.state = self.state, None
        if state is None:
            return
        try:
            state.close()
        except Exception as error:  # noqa: BLE001  # runs code of others
            log_error(error, f"{self._env_id} could not be closed: {type(error).__name__}: {error}")


def _json(name: str, value: Mapping[str, Any], where: str) -> str:
    try:
        return canonical(dict(value))
    except (TypeError, ValueError) as error:
        do = "pass texts, numbers and mappings"
        raise InvalidInput.of(name, "be JSON", str(error), where=where, do=do) from None


@lru_cache(maxsize=8)
def _load(env_id: str, rows: str, config: str, files: tuple[str, ...]) -> SkyrlTasks:
    """Read the rows that settings name, and try the first one; nobody changes tasks, so envs share them.

    `files` are digests of path, size and time of each file: a changed one is read again. Raises: InvalidInput.
    """
    settings = json.loads(rows)
    tasks = SkyrlTasks(settings.pop("source"), _check_name(env_id), **settings)
    for split in Split:
        if tasks.size(split):
            task = tasks.task(split, 0)
            try:
                _make(env_id, config, plain_json(task.payload[_EXTRAS])).close()
            except Exception as error:
                must, got = f"take the columns of {task.id}", f"{type(error).__name__}: {error}"
                do = "correct the columns, or env_config"
                raise InvalidInput.of(env_id, must, got, where=tasks.name, do=do) from error
            break
    return tasks


def _check_name(env_id: str) -> str:
    """Return the name of the environment in SkyRL-gym's registry. Raises: InvalidInput: it has none."""
    module, _, name = env_id.removeprefix(SCHEME).rpartition(":")
    registry = _skyrl_gym(env_id).registry
    if module:
        try:
            import_module(module)
        except Exception as error:  # importing runs code of others
            got, do = f"{type(error).__name__}: {error}", "check the module before the colon"
            raise InvalidInput.of(f"module {module}", "be importable", got, where=env_id, do=do) from error
    check_known("environment of SkyRL-gym", name, registry, where=env_id)
    return name


def _make(env_id: str, config: str, extras: dict[str, Any]) -> TextEnv:
    """Make the environment as SkyRL does, with the settings and the columns of a row."""
    settings = json.loads(config)
    if settings:
        from omegaconf import OmegaConf  # of skyrl-gym, whose environments read attributes

        settings = OmegaConf.create(settings)
    name = env_id.removeprefix(SCHEME).rpartition(":")[2]
    return _skyrl_gym(env_id).make(name, env_config=settings, extras=extras)


def _skyrl_gym(env_id: str) -> Any:  # the package, which has no types
    try:
        return import_module("skyrl_gym")
    except ImportError as error:
        do = "pip install skyrl-gym"
        raise InvalidInput.of(env_id, "find what it imports", f"no {error.name}", where="make", do=do) from error


def _messages(value: object, where: str) -> list[Message]:
    """Read messages of the environment. Raises: EnvFailure: they are none."""
    must, do = "be a list of messages with role and text", "correct the environment"
    if not isinstance(value, list | tuple):
        raise EnvFailure.of("observations", must, repr(value), where=where, do=do)
    try:
        return [read_openai(item, where=where) for item in value]
    except InvalidInput as error:
        raise EnvFailure.of("observations", must, str(error).partition("; ")[0], where=where, do=do) from error
