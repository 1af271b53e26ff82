"""The default back-end on Linux: bubblewrap. Own user, PID, IPC, mount, network, UTS namespaces; no rights inside.

A run costs two processes and a handful of mounts, nothing on the disk. Everything a program can write lies in a
`tmpfs` of its own and is gone with it.
"""

import shutil

from envgym.errors import ToolInfraFailure
from envgym.sandbox._bwrap_start import kernel_limits, options_of_files, reading, start_bwrap
from envgym.sandbox._cgroup import Cgroup, shared_cgroups
from envgym.sandbox._launcher_client import Argument
from envgym.sandbox._layout import PATH, WORK
from envgym.sandbox._watch import RunningProgram, close_all, watch
from envgym.sandbox.records import Completed, Limits, Program, SandboxBackend


class BwrapSandbox(SandboxBackend):
    """Runs programs with bubblewrap; a run leaves nothing, and the launcher belongs to the whole process."""

    def _complete(self, program: Program, limits: Limits) -> Completed:
        _check_installed(program)
        with shared_cgroups().making(limits.memory + limits.disk, limits.processes + 2) as cgroup:
            started, process = _start(program, limits, cgroup)
            try:
                return watch(started, limits)
            finally:
                started.kill()
                close_all(process, started.stdout, started.stderr, started.report)


def _start(program: Program, limits: Limits, cgroup: Cgroup | None = None) -> tuple[RunningProgram, int]:
    descriptors: list[int] = []
    options: list[Argument] = ["--disable-userns", "--size", "65536", "--tmpfs", "/dev/shm"]
    options += ["--size", str(limits.disk), "--perms", "0700", "--tmpfs", WORK]
    options += options_of_files(program.files, descriptors)
    stdin = reading(program.stdin)
    return start_bwrap(program.argv, stdin, options, descriptors, kernel_limits(limits), sockets=True, cgroup=cgroup)


def _check_installed(program: Program) -> None:
    """Refuse a program that the sandbox has not: that is never the policy's fault."""
    name = program.argv[0]
    if "/" not in name and shutil.which(name, path=PATH) is None:
        do = "install it where the sandbox looks, below /usr"
        raise ToolInfraFailure.of("program", "be installed", name, where="sandbox", do=do)
