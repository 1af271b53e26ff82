"""No isolation: runs programs as this user, on this machine. For programs that one would start by hand."""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.sandbox._bwrap_start import limits_per_process, reading
from envgym.sandbox._watch import RunningProgram, close_all, watch
from envgym.sandbox.records import Completed, Limits, Program, SandboxBackend


class LocalSandbox(SandboxBackend):
    """Runs programs in a temporary directory, with limits but without isolation."""

    def __init__(self, *, unsafe: bool = False) -> None:
        """Make one. Raises: InvalidInput: `unsafe` is not written out."""
        if unsafe is not True:
            do = "use bwrap, or write unsafe=True where you trust every program"
            raise InvalidInput.of("local sandbox", "be requested with unsafe=True", unsafe, where="sandbox", do=do)

    def _complete(self, program: Program, limits: Limits) -> Completed:
        with tempfile.TemporaryDirectory(prefix="envgym-") as directory:
            for path, content in program.files.items():
                target = Path(directory, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(0o755)
            started = _start(program, directory, limits)
            try:
                return watch(started, limits)
            finally:
                started.kill()
                close_all(started.stdout, started.stderr, started.report)


def _start(program: Program, directory: str, limits: Limits) -> RunningProgram:
    stdout, their_stdout = os.pipe()
    stderr, their_stderr = os.pipe()
    report, their_report = os.pipe()
    stdin = reading(program.stdin)
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": directory, "TMPDIR": directory}
    name = program.argv[0]
    if "/" not in name and shutil.which(name) is None:
        close_all(stdin, stdout, stderr, report, their_stdout, their_stderr, their_report)
        raise ToolInfraFailure.of("program", "be installed", name, where="sandbox", do="install it")
    process = subprocess.Popen(
        program.argv,
        stdin=stdin,
        stdout=their_stdout,
        stderr=their_stderr,
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    close_all(stdin, their_stdout, their_stderr)
    for kind, value in limits_per_process(limits):
        with suppress(OSError, ValueError):
            resource.prlimit(process.pid, kind, (value, value))

    def kill() -> None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    def tell() -> None:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        kill()  # what it has left behind
        answer = {"code": process.returncode, "cpu_s": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}
        with open(their_report, "w", encoding="ascii") as pipe:
            pipe.write(json.dumps(answer))

    threading.Thread(target=tell, daemon=True).start()
    return RunningProgram(pid=process.pid, kill=kill, stdout=stdout, stderr=stderr, report=report, is_private=False)
