"""Settings of tasks in containers that are mappings: limits of a machine, and instances in the form of SWE-bench."""

from typing import Literal

from pydantic import Field

from envgym.config.settings import Settings


class HarborLimits(Settings):
    """What a machine and its agent may use, where the task says nothing else."""

    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Processors of a machine."""
    memory_mb: float = Field(default=2048.0, gt=0, allow_inf_nan=False)
    """Memory of a machine in MiB."""
    storage_mb: float = Field(default=10240.0, gt=0, allow_inf_nan=False)
    """What a machine may write, in MiB."""
    processes: int = Field(default=512, ge=2)
    """Processes of a machine at the same time; no task states it."""
    command_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds of one command of the agent; no task states it."""
    agent_s: float = Field(default=900.0, gt=0, allow_inf_nan=False)
    """Seconds of all commands of an episode."""
    kept_mb: float = Field(default=64.0, gt=0, le=64.0)
    """MiB that a new container gets of each kept path, as a compressed archive; no task states it."""
    output: int = Field(default=16384, ge=100, le=1_000_000)
    """Bytes of a command's output that the agent sees; no task states it."""


class SweSettings(Settings):
    """Instances in the form of SWE-bench: rows of a file, each with a repository in an image."""

    instances: str | dict[str, str]
    """A file or data set, or a mapping from split to file; its columns are those of SWE-bench."""
    images: str = "swebench/sweb.eval.x86_64.{id}:latest"
    """Name of an instance's image; `{id}` is the id in lower case with `_1776_` for `__`, `{row}` the id as it is."""
    contexts: str | None = None
    """Folder of an instance's Dockerfile, with `{row}` for the id; in place of `images`."""
    workdir: str = Field(default="/testbed", pattern=r"/.+")
    """Where the repository is in the image."""
    runner: Literal["pytest", "unittest"] = "pytest"
    """What runs the tests."""
    python: str = "python3"
    """Python of the tests in the image."""
    timeout_s: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """Seconds of all tests."""
