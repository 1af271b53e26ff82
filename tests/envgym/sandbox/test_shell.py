"""Shell sessions: the directory is kept, forks part, limits are typed, and nothing leads out or stays behind."""

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.errors import InvalidInput, ToolError, ToolInfraFailure
from envgym.sandbox import MIB, Completed, Limits, LocalSandbox, RunEnding, Sandbox
from envgym.sandbox._shell_tree import (
    EMPTY,
    MAX_ENTRIES,
    MAX_HEAD,
    InvalidTree,
    TreeEntry,
    add_files,
    pack_tree,
    read_result,
)
from envgym.sandbox.shell import ShellSession

LIMITS = Limits(wall_s=20, cpu_s=10, disk=2 * MIB, output=2000)
Say = Callable[[str], str]


@pytest.fixture
def shell(bwrap: Sandbox) -> Iterator[ShellSession]:
    with ShellSession({"a/b.txt": b"hi\n", "run": b"#!/bin/sh\necho ran\n"}, LIMITS, bwrap) as session:
        yield session


def said(session: ShellSession, command: str) -> str:
    return session.run(command).output.decode()


def test_files_and_directory_are_kept_between_commands_and_variables_are_not(shell: ShellSession) -> None:
    assert said(shell, "./run; cat a/b.txt") == "ran\nhi\n"
    turn = shell.run("cd a; X=1; echo more >> b.txt; mkdir 'e m'; chmod 400 b.txt; ln -s b.txt l; exit 3")
    assert (turn.exit_code, turn.ending, turn.undone) == (3, RunEnding.EXITED, "")
    assert said(shell, 'cat l; ls; stat -c %a b.txt; echo "[$X]"; pwd') == (
        "hi\nmore\nb.txt\ne m\nl\n400\n[]\n/tmp/work/a\n"
    )
    assert shell.files() == ["a/b.txt", "run"]
    assert shell.read("./a//b.txt") == b"hi\nmore\n"
    shell.write("new/x.bin", b"\xff\0")
    assert said(shell, "cd ..; wc -c < new/x.bin; rm -r new; cd /usr") == "2\n"
    assert said(shell, "pwd; cd /tmp/work/a") == "/usr\n"
    assert said(shell, "rm -r ../a; ls") == ""
    assert said(shell, "pwd; ls") == "/tmp/work\nrun\n"  # the directory it was in is gone


def test_times_are_kept_so_that_make_works(shell: ShellSession) -> None:
    shell.run("touch -d 2001-01-01 a/b.txt; touch -d 1901-01-01 run")
    assert said(shell, "[ a/b.txt -nt run ] && [ ! run -nt a/b.txt ] && stat -c %Y a/b.txt run") == "978307200\n0\n"


def test_forks_go_on_independently_both_ways(shell: ShellSession) -> None:
    shell.run("cd a; echo 1 > n")
    twin = shell.fork()
    grandchild = twin.fork()
    assert said(twin, "echo 2 > n; rm b.txt; cat n") == "2\n"
    assert said(shell, "cat n b.txt; echo 3 > n") == "1\nhi\n"
    twin.write("a/m", b"m")
    assert (twin.read("a/n"), shell.read("a/n"), grandchild.read("a/n")) == (b"2\n", b"3\n", b"1\n")
    assert (twin.files(), shell.files()) == (["a/m", "a/n", "run"], ["a/b.txt", "a/n", "run"])
    twin.close()
    assert said(grandchild, "ls") == "b.txt\nn\n"


def test_a_fork_copies_nothing_and_unchanged_files_are_shared(shell: ShellSession) -> None:
    twin = shell.fork()
    twin.run("echo x > new")
    assert twin.read("a/b.txt") is shell.read("a/b.txt")
    assert pickle.loads(pickle.dumps(twin)).read("new") == b"x\n"


@pytest.mark.parametrize(
    "command, ending, kept",
    [
        ("echo x > kept; sleep 60", RunEnding.WALL_TIME, True),
        ("echo x > kept; while :; do :; done", RunEnding.CPU_TIME, True),
        ("echo x > kept; yes", RunEnding.OUTPUT, True),
        ("echo x > kept; sleep 60 & exit 0", RunEnding.EXITED, True),
        ("echo x > kept; setsid sleep 60 >/dev/null & kill $$", RunEnding.SIGNALED, True),
        ("echo x > kept; kill -9 -1", RunEnding.SIGNALED, False),
        ("echo x > kept; rm -r /tmp/work", RunEnding.DISK, False),
        ("echo x > kept; truncate -s 1500K a/1; truncate -s 1500K a/2", RunEnding.DISK, False),
        ("echo x > kept; mkdir m; cd m; seq 10001 | xargs touch", RunEnding.DISK, False),
    ],
)
def test_limits_are_typed_and_the_directory_is_kept_or_as_before(
    shell: ShellSession, command: str, ending: RunEnding, kept: bool
) -> None:
    turn = shell.run(command, Limits(wall_s=1.5 if ending is RunEnding.WALL_TIME else 30, cpu_s=1, output=2000))
    assert (turn.ending, not turn.undone, len(turn.output) <= 2000) == (ending, kept, True)
    assert ("kept" in shell.files()) == kept
    assert said(shell, "cat a/b.txt") == "hi\n"


def test_what_does_not_fit_is_refused_to_the_command(shell: ShellSession) -> None:
    assert "File too large" in said(shell, "truncate -s 10G sparse") + said(shell, "truncate -s 10G sparse 2>&1")
    assert "No space left" in said(shell, "for i in 1 2 3 4; do head -c 1M /dev/zero > $i; done; rm -f 1 2 3 4 s*")
    with pytest.raises(ToolError, match="at most 2097152 bytes"):
        shell.write("large", b"x" * 2 * MIB)
    assert shell.files() == ["a/b.txt", "run"]


def test_links_and_special_files_lead_nowhere(shell: ShellSession) -> None:
    shell.run("ln -s /etc/passwd p; ln -s / root; ln -s .. up; mkfifo f; ln -s loop loop; ln a/b.txt hard; ln -s a d")
    assert shell.files() == ["a/b.txt", "hard", "run"]
    for path in (
        "p",
        "root/etc/passwd",
        "up/work/run",
        "f",
        "loop",
        "d/b.txt",
        "a",
        "../x",
        "/etc/passwd",
        "",
        "a/../run",
    ):
        with pytest.raises(ToolError):
            shell.read(path)
    for path in ("p", "root/x", "d/x", "a", "../x", "/tmp/x", "a/./../x", "x\0", "run/x"):
        with pytest.raises(ToolError):
            shell.write(path, b"")
    assert (
        said(shell, "readlink p up; cat hard; ls f")
        == "/etc/passwd\n..\nhi\nls: cannot access 'f': No such file or directory\n"
    )


def test_no_network_and_none_of_the_host(shell: ShellSession) -> None:
    os.environ["ENVGYM_SECRET"] = "s3cret"
    seen = said(shell, f"env; ls {os.path.dirname(__file__)}; ls ~ /root; cat /proc/net/dev")
    assert "s3cret" not in seen
    assert "test_shell" not in seen
    assert "eth" not in seen
    del os.environ["ENVGYM_SECRET"]


def forged(**changes: object) -> bytes:
    row = ["x", "file", 420, 0, 1, -1, ""]
    return (
        json.dumps(
            {"code": 0, "ending": "EXITED", "cwd": ".", "seconds": 0.1, "size": 0, "reason": None, "entries": [row]}
            | changes
        ).encode()
        + b"\n!"
    )


INVALID = {
    "leads out": forged(entries=[["../x", "file", 420, 0, 1, -1, ""]]),
    "is absolute": forged(entries=[["/x", "file", 420, 0, 1, -1, ""]]),
    "lies in no directory": forged(entries=[["a/x", "file", 420, 0, 1, -1, ""]]),
    "lies in a link": forged(entries=[["a", "link", 511, 0, 0, -1, "/etc"], ["a/x", "file", 420, 0, 1, -1, ""]]),
    "is longer than said": forged(entries=[["x", "file", 420, 0, 2, -1, ""]]),
    "is a file of another tree": forged(entries=[["x", "file", 420, 0, 2, 0, ""]]),
    "is of no kind": forged(entries=[["x", "device", 420, 0, 0, -1, ""]]),
    "has rights of root": forged(entries=[["x", "file", 0o4755, 0, 1, -1, ""]]),
    "too many": forged(entries=[[f"x{i}", "directory", 448, 0, 0, -1, ""] for i in range(10_001)]),
    "short row": forged(entries=[["x"]]),
    "no rows": forged(entries={}),
    "no number": forged(code="0"),
    "no end": forged(size=10**9),
    "deep": b"[" * 100_000 + b"\n",
    "nothing": b"",
    "text": b"hello\n",
}


@pytest.mark.parametrize("what", INVALID)
def test_what_no_sandbox_of_ours_writes_is_refused(what: str) -> None:
    assert read_result(forged(), EMPTY, 10).tree == {"x": TreeEntry("file", b"!", 420, 0)}
    with pytest.raises(InvalidTree):
        read_result(INVALID[what], EMPTY, 10)


def test_a_command_that_speaks_for_its_shell_can_change_its_own_files_alone(shell: ShellSession) -> None:
    evil = json.dumps([["../evil", "file", 420, 0, 1, -1, ""]])
    head = f'{{"code":0,"ending":"EXITED","cwd":".","seconds":0.1,"size":0,"reason":null,"entries":{evil}}}'
    turn = shell.run(f"printf '%s\\n!' '{head}' > /proc/$PPID/fd/1; kill -9 $PPID")
    assert turn.undone
    assert shell.files() == ["a/b.txt", "run"]


@settings(max_examples=25)
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_no_bytes_break_the_reader(text: bytes) -> None:
    for said_ in (text, text + b"\n", forged(entries=[text.decode(errors="replace")])):
        with pytest.raises(InvalidTree):
            read_result(said_, EMPTY, 1000)


@settings(max_examples=25)
@given(st.dictionaries(st.from_regex(r"[a-c]{1,2}", fullmatch=True), st.binary(max_size=20), max_size=5))
def test_a_packed_tree_holds_all_and_writing_changes_no_other_tree(files: dict[str, bytes]) -> None:
    tree = add_files(EMPTY, {f"d/{name}": content for name, content in files.items()})
    other = add_files(tree, {"d/new": b"n"})
    assert {path: entry.content for path, entry in tree.items() if entry.kind == "file"} == {
        f"d/{name}": content for name, content in files.items()
    }
    assert set(other) - set(tree) <= {"d", "d/new"}
    assert pack_tree(tree, {}).endswith(b"".join(files.values()))


class Dead:
    def run(self, *arguments: object) -> Completed:
        raise ToolInfraFailure("the sandbox is dead")

    def close(self) -> None:
        """Do nothing."""


def test_a_dead_sandbox_is_a_failure_and_wrong_use_a_sentence() -> None:
    with pytest.raises(ToolInfraFailure, match="dead"):
        ShellSession(sandbox=Dead()).run("true")
    with pytest.raises(InvalidInput, match=r"files must make a directory, got '../x' is not a path inside"):
        ShellSession({"../x": b""})
    session = ShellSession(sandbox=Dead())
    for command in ("x" * 100_001, "a\0b"):
        with pytest.raises(ToolError, match="at most 100000 bytes, and no NUL"):
            session.run(command)
    session.close()
    session.close()
    with pytest.raises(InvalidInput, match="session must be open"):
        session.read("x")


def test_it_runs_on_any_back_end_and_leaves_no_descriptor_and_no_process(shell: ShellSession) -> None:
    local = ShellSession({"x": b"1\n"}, LIMITS, LocalSandbox(unsafe=True))
    assert (said(local, "cat x; echo 2 > y; cd /"), local.files()) == ("1\n", ["x", "y"])
    shell.run("true")
    before = len(os.listdir("/proc/self/fd"))
    for command in ("true", "kill -9 -1", "sleep 60 & true"):
        shell.fork().run(command)
    assert len(os.listdir("/proc/self/fd")) == before
    assert isinstance(shell._tree, MappingProxyType)


def test_a_huge_list_of_entries_is_refused_before_it_is_decoded() -> None:
    reply = b'{"entries": [' + b"[]," * (MAX_HEAD // 4) + b"0]}\n"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTree):
            read_result(reply, EMPTY, 10)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_HEAD, "a list takes 64 bytes"
    finally:
        tracemalloc.stop()
    entries = [[str(number), "file", 420, 0, 0, -1, ""] for number in range(MAX_ENTRIES)]
    assert len(read_result(forged(entries=entries), EMPTY, 10).tree) == MAX_ENTRIES


@pytest.mark.parametrize(
    "command, output, log",
    [
        ("exec > >(tee log); echo one; echo two", "one\ntwo\n", "one\ntwo\n"),
        ("exec > >(tee -a log) 2>&1; echo one; echo two >&2", "one\ntwo\n", "one\ntwo\n"),
        ("{ echo b; echo a; } > >(sort > log); exit 3", "", "a\nb\n"),
        ("echo x | tee log", "x\n", "x\n"),
        ("exec > >(sed s/^/out:/ | tee log); seq 3; exit 1", "out:1\nout:2\nout:3\n", "out:1\nout:2\nout:3\n"),
    ],
)
def test_programs_read_what_the_shell_writes_and_end(shell: ShellSession, command: str, output: str, log: str) -> None:
    assert (said(shell, command), shell.read("log").decode()) == (output, log)


def test_what_a_command_leaves_running_is_ended_after_a_moment(shell: ShellSession) -> None:
    turn = shell.run("sleep 15 & (sleep 15; echo late) & echo now")
    assert (turn.output, turn.ending, turn.exit_code) == (b"now\n", RunEnding.EXITED, 0)
    assert turn.seconds < 5.0
    assert shell.run("sleep 15 > /dev/null 2>&1 & echo now").output == b"now\n"
