"""Compiles a program and runs it on inputs, inside the sandbox; run there as a script. Standard library only.

It knows inputs only, no expected output, so whatever a program does to it gains nothing. argv: the job, a literal:
{"compile": command or None, "compile_s", "run": command or None, "file", "seconds", "num_inputs", "stops"}.
A program without a command is run by forks of this interpreter, which has run nothing of it: starting another one takes
five times as long. So there is no import here that takes time, such as json, signal or subprocess.

Writes for each process, in order, a line with its exit code ("time": it took too long) and the sizes of its output and
its errors, then both.
"""

import atexit
import gc
import os
import resource
import select
import sys

MAX_SHOWN = 2000
MAX_OUTPUT = 65536
MAX_FILE = 8 * 1024**2
_KILL, _PIPE, _FILE_SIZE = 9, 13, 25
"""Signals; Python ignores the last two, other programs do not."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def start(command: list[str] | None, stdin: str) -> int:
    """Start a command, or without one a fork of this interpreter; return the process, 0 in the fork."""
    files = [(stdin, os.O_RDONLY), ("stdout", _WRITE), ("stderr", _WRITE)]
    if command is not None:
        actions = [(os.POSIX_SPAWN_OPEN, number, path, flags, 0o600) for number, (path, flags) in enumerate(files)]
        defaults = [_PIPE, _FILE_SIZE]
        return os.posix_spawnp(command[0], command, os.environ, file_actions=actions, setsid=True, setsigdef=defaults)
    process = os.fork()
    if process == 0:
        os.setsid()
        for number, (path, flags) in enumerate(files):
            descriptor = os.open(path, flags, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
    return process


def finish(process: int, seconds: float) -> int:
    """Wait for a process, end what it has left, write what it did; return its exit code, -9 if it took too long."""
    descriptor, ended = os.pidfd_open(process), select.poll()
    ended.register(descriptor, select.POLLIN)
    is_late = not ended.poll(1000 * seconds)
    os.close(descriptor)
    os.kill(process, _KILL)
    try:  # noqa: SIM105  # contextlib takes long to import
        os.killpg(process, _KILL)
    except ProcessLookupError:
        pass  # the program was killed before it began a group, so it has left no process
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    out, err = _read("stdout", MAX_OUTPUT), _read("stderr", MAX_SHOWN)
    with open(1, "wb", closefd=False) as results:
        results.write(b"%s %d %d\n" % (b"time" if is_late else b"%d" % code, len(out), len(err)))
        results.write(out + err)
    return code


def _read(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def main() -> str:
    """Do the job; return the program to run in a fork, "" otherwise."""
    job = eval(sys.argv[1])  # ours
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # integers of any length are printed and read; processor time bounds them
    gc.freeze()  # so that no fork copies what it only looks at
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    if job["compile"] is not None and finish(start(job["compile"], os.devnull), job["compile_s"]) != 0:
        return ""
    for number in range(job["num_inputs"]):
        process = start(job["run"], f"input.{number}")
        if process == 0:
            return str(job["file"])
        if finish(process, job["seconds"]) != 0 and job["stops"]:
            break
    return ""


def leave_program(code: object = None) -> None:
    """End the program, as `exit` and `quit` do in an interpreter that has imported `site`. Raises: SystemExit."""
    raise SystemExit(code)


def interpret(path: str) -> None:
    """Do in this process what an interpreter does that is started with a script."""
    module = type(sys)("__main__")
    builtins = sys.modules["builtins"]
    builtins.__dict__["exit"] = builtins.__dict__["quit"] = leave_program
    module.__dict__.update(__file__=os.path.abspath(path), __builtins__=builtins)
    sys.modules["__main__"], sys.argv = module, [path]
    code: object = 1

    def leave() -> None:
        """End before the interpreter frees all that it has, which would first copy what the forks share."""
        sys.modules.pop("__main__", None)
        gc.collect()  # writes what the program has left in open files
        for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
            if stream is not None and not stream.closed:
                stream.flush()  # an error leaves the end to the interpreter
        os._exit(code if isinstance(code, int) else code is not None)

    atexit.register(leave)  # runs last, after threads and what the program has registered
    try:
        exec(compile(_read(path, -1), os.path.abspath(path), "exec"), module.__dict__)
        code = 0
    except SystemExit as end:
        code = end.code
        raise
    except Exception as error:  # noqa: BLE001  # shown as the interpreter shows it, without our own frame
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__" and (program := main()):
    interpret(program)
