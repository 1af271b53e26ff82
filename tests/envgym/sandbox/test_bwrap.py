"""Every back-end runs programs as asked; bubblewrap's own failures are infrastructure errors, never results."""

import os
import signal
import threading

import pytest

from envgym.errors import InvalidInput, ToolInfraFailure, UnknownName
from envgym.sandbox import (
    BwrapSandbox,
    Limits,
    LocalSandbox,
    RunEnding,
    Sandbox,
    _bwrap_start,
    make_sandbox,
    why_unusable,
)
from tests.envgym.sandbox.processes import running

BACK_ENDS = ("bwrap", "local", pytest.param("docker", marks=pytest.mark.docker))


@pytest.fixture(params=BACK_ENDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return LocalSandbox(unsafe=True) if request.param == "local" else request.getfixturevalue(request.param)


def test_program_gets_its_arguments_input_and_files_and_gives_its_output(sandbox: Sandbox) -> None:
    done = sandbox.run(
        ["sh", "-c", 'printf "%s|" "$@"; cat; cat a/b.txt; echo oops >&2; exit 7', "sh", "x y", "ü"],
        stdin=b"in\xff",
        files={"a/b.txt": b"file"},
    )
    assert (done.stdout, done.stderr) == ("x y|ü|in".encode() + b"\xfffile", b"oops\n")
    assert (done.exit_code, done.ending, done.is_success) == (7, RunEnding.EXITED, False)
    assert 0 < done.seconds < 30


def test_signal_and_wall_time_are_typed_endings(sandbox: Sandbox) -> None:
    killed = sandbox.run(["sh", "-c", "kill -SEGV $$"])
    assert (killed.exit_code, killed.ending) == (128 + signal.SIGSEGV, RunEnding.SIGNALED)
    slept = sandbox.run(["sleep", "99"], limits=Limits(wall_s=0.3))
    assert (slept.exit_code, slept.ending) == (-1, RunEnding.WALL_TIME)
    assert slept.ending.is_limit
    loud = sandbox.run(["sh", "-c", "while :; do echo x; done"], limits=Limits(output=10))
    assert (loud.ending, loud.stdout) == (RunEnding.OUTPUT, b"x\n" * 5)


def test_files_do_not_outlive_a_run(sandbox: Sandbox) -> None:
    assert sandbox.run(["sh", "-c", "echo 1 > left; ls"]).stdout == b"left\n"
    assert sandbox.run(["ls"]).stdout == b""


def test_peak_memory_is_measured(walled: Sandbox) -> None:
    small, big = (
        walled.run(["python3", "-I", "-S", "-c", f"x = bytes(1) * {size}"]).peak_memory for size in (1, 100 * 2**20)
    )
    assert small < 30 * 2**20
    assert 100 * 2**20 < big < 130 * 2**20


def test_peak_memory_of_many_processes_is_added_up(walled: Sandbox) -> None:
    code = "import os, time\nos.fork()\nx = bytearray(b'x') * (60 * 2**20)\ntime.sleep(0.5)"
    assert walled.run(["python3", "-I", "-S", "-c", code]).peak_memory > 110 * 2**20


def test_many_threads_run_side_by_side(walled: Sandbox) -> None:
    said: dict[int, bytes] = {}

    def run(number: int) -> None:
        said[number] = walled.run(["sh", "-c", f"echo {number}; cat"], stdin=b"%d" % number).stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: b"%d\n%d" % (number, number) for number in range(12)}


@pytest.mark.parametrize(
    "argv, files, match",
    [
        ([], {}, "argv must be the words"),
        (["a\0b"], {}, "argv must be the words"),
        (["ls"], {"../x": b""}, "file must lie in the working directory"),
        (["ls"], {"/x": b""}, "file must lie in the working directory"),
        (["ls"], {str(number): b"" for number in range(201)}, "number of files must be at most 200"),
    ],
)
def test_what_cannot_be_run_is_refused(sandbox: Sandbox, argv: list[str], files: dict[str, bytes], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        sandbox.run(argv, files=files)


def test_limits_that_limit_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="wall_s must be positive and finite, got 0"):
        Limits(wall_s=0)
    with pytest.raises(InvalidInput, match="cpu_s must be positive and finite, got inf"):
        Limits(cpu_s=float("inf"))


def test_a_missing_program_is_the_sandbox_fault(sandbox: Sandbox) -> None:
    with pytest.raises(ToolInfraFailure, match="program must be installed, got no-such-compiler"):
        sandbox.run(["no-such-compiler"])


def test_a_missing_back_end_is_an_infrastructure_failure_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _bwrap_start._program.cache_clear()
    monkeypatch.setattr(_bwrap_start, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolInfraFailure, match=r"bwrap must be installed, got no such program .*envgym\[code\]"):
        BwrapSandbox().run(["true"])
    assert str(why_unusable(BwrapSandbox())).startswith("bwrap must be installed")
    monkeypatch.undo()
    _bwrap_start._program.cache_clear()


def test_a_machine_without_namespaces_is_one_sentence(bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.sandbox._bwrap_start._NAMESPACES", ("--no-such-option",))
    reason = why_unusable(bwrap)
    assert reason is not None
    assert reason.startswith("bwrap must be able to make namespaces, got bwrap: Unknown option")


def test_a_killed_launcher_makes_running_programs_infrastructure_failures_and_is_replaced(bwrap: Sandbox) -> None:
    assert bwrap.run(["true"]).is_success
    failures: list[Exception] = []

    def run() -> None:
        try:
            bwrap.run(["sleep", "99"], limits=Limits(wall_s=20))
        except ToolInfraFailure as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    while not running(rb"^sleep\0"):
        pass
    launcher = running(rb"_launcher\.py")[0]
    os.kill(launcher, signal.SIGKILL)
    thread.join()
    assert "ended without a report" in str(failures[0])
    assert bwrap.run(["true"]).is_success
    assert not running(rb"^sleep\0")


def test_local_back_end_is_refused_unless_unsafe_is_written_out() -> None:
    with pytest.raises(InvalidInput, match="local sandbox must be requested with unsafe=True"):
        make_sandbox("local")
    assert make_sandbox("local", unsafe=True).run(["true"]).is_success
    with pytest.raises(UnknownName, match="did you mean bwrap"):
        make_sandbox("bwrp")
