"""Places where programs that a model wrote can run: `make_sandbox().run(["python3", "-c", "print(1)"])`.

Such a program is hostile. It gets a read-only system, an empty directory, no network, and limits; a failure of the
sandbox itself is a `ToolInfraFailure`, which makes a reward invalid, never 0. `PythonSession` keeps its state between
runs, and forks.
"""

import shutil

from envgym.errors import ToolInfraFailure
from envgym.sandbox._cgroup import shared_cgroups
from envgym.sandbox._layout import PATH
from envgym.sandbox.bwrap import BwrapSandbox
from envgym.sandbox.docker import DockerSandbox
from envgym.sandbox.local import LocalSandbox
from envgym.sandbox.making import make_machines, make_sandbox
from envgym.sandbox.records import DEFAULT_LIMITS, MIB, Completed, Limits, RunEnding, Sandbox
from envgym.sandbox.session import MAX_LIVE_FORKS, PythonSession, SessionResult

__all__ = [
    "DEFAULT_LIMITS",
    "MAX_LIVE_FORKS",
    "MIB",
    "BwrapSandbox",
    "Completed",
    "DockerSandbox",
    "Limits",
    "LocalSandbox",
    "PythonSession",
    "RunEnding",
    "Sandbox",
    "SessionResult",
    "has_program",
    "make_machines",
    "make_sandbox",
    "why_counted",
    "why_unusable",
]


def has_program(name: str) -> bool:
    """Tell whether programs in a sandbox find a program of this name."""
    return shutil.which(name, path=PATH) is not None


def why_unusable(sandbox: Sandbox) -> str | None:
    """Return in one sentence why a sandbox cannot run programs here, None where it can."""
    try:
        sandbox.run(["true"])
    except ToolInfraFailure as failure:
        return str(failure)
    return None


def why_counted() -> str | None:
    """Return in one sentence why limits are held by counting from /proc, None where a cgroup holds them too.

    A cgroup (version 2) does for each run, session and fork where this process may make some with the controllers
    `memory` and `pids`.
    """
    return shared_cgroups().why_none()
