"""The file `task.toml` of a Harbor or Terminal-Bench task, schema 1.x: read, checked, and refused in one sentence."""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from envgym.config.settings import Settings, build_settings, faults
from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput

NetworkMode = Literal["no-network", "public", "allowlist"]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.IGNORECASE)
_MIB_OF = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_VARIABLE = re.compile(r"\$\{(?P<name>[^}:]+)(?P<has_default>:-(?P<default>.*))?\}")
_FREE = ("task", "metadata", "source")
"""Keys that describe a task and change nothing."""


class _Part(BaseModel):
    """A table of the file; keys that are not read are kept apart."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Healthcheck(_Part):
    """A command that must succeed before the agent begins."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    timeout_sec: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    start_period_sec: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    start_interval_sec: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    retries: int = Field(default=3, ge=1)


class AgentPart(_Part):
    """`[agent]`"""

    timeout_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    user: str | int | None = None
    network_mode: NetworkMode | None = None


class VerifierPart(_Part):
    """`[verifier]`"""

    timeout_sec: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None


class EnvironmentPart(_Part):
    """`[environment]`"""

    build_timeout_sec: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    storage_mb: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    network_mode: NetworkMode = "public"
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    healthcheck: Healthcheck | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_older_keys(cls, data: Any) -> Any:  # whatever the file has
        """Take the keys of earlier schemas: `memory = "2G"`, `storage`, `allow_internet`."""
        if not isinstance(data, dict):
            return data
        fields = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if isinstance(fields.get(old), str):
                size = _SIZE.fullmatch(fields.pop(old).strip())
                if size is None:
                    raise ValueError(f"sizes such as 512M or 2G in {old}")
                fields.setdefault(new, float(size[1]) * _MIB_OF[size[2].upper()])
        allows = fields.pop("allow_internet", None)
        if isinstance(allows, bool):
            fields.setdefault("network_mode", "public" if allows else "no-network")
        return fields

    @field_validator("workdir")
    @classmethod
    def _check_workdir(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("an absolute path, such as /app")
        return value


class SolutionPart(_Part):
    """`[solution]`"""

    env: dict[str, str] = Field(default_factory=dict)


class OwnPart(Settings):
    """`[metadata.envgym]`: what only this project reads."""

    verification: Literal["shared", "fresh"] = "shared"
    """Whether the tests run in the agent's container, or in a new one that gets only the paths of `keep`."""
    keep: tuple[str, ...] = ()
    """Absolute paths that a new container gets from the agent's; none: the working directory."""

    @field_validator("keep")
    @classmethod
    def _check_keep(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(path.startswith("/") and path.strip("/") and ".." not in path.split("/") for path in value):
            raise ValueError("absolute paths below /, such as /app")
        return value


class TaskFile(_Part):
    """The whole file."""

    schema_version: str = "1.4"
    agent: AgentPart = AgentPart()
    verifier: VerifierPart = VerifierPart()
    environment: EnvironmentPart = EnvironmentPart()
    solution: SolutionPart = SolutionPart()
    task: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    steps: list[Any] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _read_old_version(cls, data: Any) -> Any:  # whatever the file has
        if isinstance(data, dict) and "version" in data:
            rest = {key: value for key, value in data.items() if key != "version"}
            return {"schema_version": data["version"], **rest}
        return data


def read_task_file(path: Path, *, where: str) -> TaskFile:
    """Read a `task.toml`. Raises: InvalidInput: it is no TOML, a value breaks a rule, or the task is refused."""
    do = "correct the file"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput.of("task.toml", "be TOML", str(error), where=where, do=do) from None
    try:
        file = TaskFile.model_validate(data)
    except ValidationError as error:
        raise InvalidInput("\n".join(faults(TaskFile, error, where=f"task.toml of {where}"))) from None
    must = "have the schema version 1.x"
    InvalidInput.unless(
        file.schema_version.startswith("1."), "task.toml", must, file.schema_version, where=where, do=do
    )
    for is_refused, what, must, got, remedy in _refusals(file):
        InvalidInput.unless(not is_refused, what, must, got, where=where, do=remedy)
    return file


def own_part(file: TaskFile, *, where: str) -> OwnPart:
    """Return `[metadata.envgym]`. Raises: InvalidInput: a key or value that is not known."""
    own = file.metadata.get("envgym", {})
    must, do = "be a table", "write it as [metadata.envgym]"
    InvalidInput.unless(isinstance(own, dict), "metadata.envgym", must, repr(own), where=where, do=do)
    return build_settings(OwnPart, own, where=f"metadata.envgym of {where}")


def network_of(file: TaskFile) -> bool:
    """Return whether agent and tests of a task may reach a network."""
    return (file.agent.network_mode or file.environment.network_mode) == "public"


def _refusals(file: TaskFile) -> Iterator[tuple[bool, str, str, str, str]]:
    """Yield (whether it holds, what, must, got, do) for all that is not supported."""
    environment, verifier = file.environment, file.verifier
    yield bool(file.steps), "task", "have one step", f"{len(file.steps)} [[steps]]", "make each step a task"
    system, do = environment.os.lower(), "use a Linux image"
    yield system != "linux", "environment.os", "be linux", environment.os, do
    do = "remove the key; containers have no accelerator"
    yield bool(environment.gpus), "environment.gpus", "be 0 or absent", str(environment.gpus), do
    yield environment.tpu is not None, "environment.tpu", "be absent", str(environment.tpu), do
    is_separate = verifier.environment_mode == "separate" or verifier.environment is not None
    do = 'run the tests in the agent\'s image, with environment_mode = "shared"'
    yield is_separate, "verifier", "have no environment of its own", "a separate one", do
    modes = (file.environment.network_mode, file.agent.network_mode, verifier.network_mode)
    do = "use no-network or public"
    yield "allowlist" in modes, "network_mode", "be no-network or public", "allowlist", do
    general = environment.network_mode
    differ = (file.agent.network_mode or general) != (verifier.network_mode or general)
    do = "give both the same network_mode"
    yield differ, "network_mode", "be the same for agent and verifier", "two modes", do


# ---- what is not read, descriptions, variables --------------------------------------------------------------------


def unread_keys(file: TaskFile) -> list[str]:
    """Return the dotted keys of the file that change nothing here."""
    return sorted(_extra(file, ""))


def _extra(part: BaseModel, prefix: str) -> Iterator[str]:
    yield from (f"{prefix}{name}" for name in part.model_extra or {})
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel) and name not in _FREE:
            yield from _extra(value, f"{prefix}{name}.")


def description_of(file: TaskFile) -> dict[str, JsonValue]:
    """Return the plain values of `[metadata]`, such as difficulty and category."""
    items = ((name, value) for name, value in file.metadata.items() if name != "envgym")
    return {name: value for name, value in items if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str | int | float)


def resolve_variables(variables: Mapping[str, str], allowed: Collection[str], *, where: str) -> dict[str, str]:
    """Return environment variables with `${NAME}` and `${NAME:-default}` replaced.

    Args:
        variables: name -> value of a table `env`.
        allowed: variables of this process that may be read.
        where: the place, for errors.

    Raises: InvalidInput: a variable without a default is not allowed, or not set here.
    """
    return {name: _resolve(value, allowed, where) for name, value in variables.items()}


def _resolve(value: str, allowed: Collection[str], where: str) -> str:
    match = _VARIABLE.fullmatch(value)
    if match is None:
        return value
    if match["name"] in allowed and match["name"] in os.environ:
        return os.environ[match["name"]]
    if match["has_default"]:
        return match["default"]
    got = "one that is not set" if match["name"] in allowed else "one that is not named"
    do = f"set {match['name']} and pass host_env=[{match['name']}]"
    raise InvalidInput.of(f"variable {value}", "be set here and named in host_env", got, where=where, do=do)
