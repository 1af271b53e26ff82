"""A process that has imported what programs import, and becomes each of them in a fork: `tests.support.programs`.

It starts no thread, so that a fork lacks nothing. A request has four descriptors: the standard ones, and that to which
the program's id and its exit code are written.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_REQUEST = 1 << 17
"""Bytes of a program's arguments and environment."""
_IMPORTED = ("envgym.api", "envgym.cli.main", "envgym.trainer.train", "envgym.trainer.phases", "envgym.agents.search")


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for every request until there are no more; return a request in the process that is to become its program."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 4)
        if not request:
            return None
        if os.fork() == 0:
            connection.close()
            if _is_program(descriptors):
                asked: dict[str, Any] = json.loads(request)
                return asked
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _is_program(descriptors: list[int]) -> bool:
    """Fork: return True in the program, and False in its parent, when the program has ended and its code is written."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, status = descriptors
    program = os.fork()
    if program == 0:
        os.setpgid(0, 0)
        os.close(status)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return True
    for descriptor in standard:
        os.close(descriptor)
    os.setpgid(program, program)  # before anybody knows its id
    os.write(status, f"{program}\n".encode())
    os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])}\n".encode())
    return False


def become(arguments: list[str], directory: str, environment: dict[str, str], packages: list[str]) -> None:
    """Do what `python ARGUMENTS` does in the directory: `-m MODULE ...` or `-c CODE ...`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    option, program, *words = arguments
    first = directory if option == "-m" else ""
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *named, *(path for path in packages if path not in named)]
    importlib.invalidate_caches()
    sys.argv = [option, *words]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


def paths_of_packages() -> list[str]:
    """Return what is on the path of every program, which PYTHONPATH may name too; this process was given one."""
    program = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths: list[str] = json.loads(subprocess.run(program, env=environment, capture_output=True, check=True).stdout)
    return paths


if __name__ == "__main__":
    _packages = paths_of_packages()
    for _name in _IMPORTED:
        importlib.import_module(_name)
    assert len(list(Path("/proc/self/task").glob("*"))) <= 1, "a fork has no thread but the one that forks"
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as _connection:
        _asked = serve(_connection)
    if _asked is not None:
        become(**_asked, packages=_packages)
