"""Cgroups: which one is this process' own is read from texts; where there is one, the kernel itself holds limits."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from envgym.errors import ToolInfraFailure
from envgym.sandbox import MIB, Limits, PythonSession, RunEnding, Sandbox, _watch, why_counted
from envgym.sandbox._cgroup import Cgroup, CgroupMaker, NoCgroup, _divided, memory_of, own_cgroup, parse_counters
from envgym.sandbox._cgroup import shared_cgroups as shared
from envgym.sandbox._processes import WrittenFiles
from envgym.sandbox._session_watch import MAX_CLONES
from envgym.sandbox._watch import close_all
from envgym.sandbox.bwrap import _start
from envgym.sandbox.records import Program

V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
BOUND = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    "cgroup, mountinfo, path",
    [
        ("0::/\n", V2, "/sys/fs/cgroup"),
        ("4:memory:/x\n0::/user.slice/a.scope\n", V1 + V2, "/sys/fs/cgroup/user.slice/a.scope"),
        ("0::/docker/abc\n", BOUND, "/sys/fs/cgroup"),
        ("0::/docker/abc/d\n", BOUND, "/sys/fs/cgroup/d"),
    ],
)
def test_own_cgroup_is_its_path_below_the_root_of_a_mount(cgroup: str, mountinfo: str, path: str) -> None:
    assert own_cgroup(cgroup, mountinfo) == Path(path)


@pytest.mark.parametrize(
    "cgroup, mountinfo",
    [
        ("4:memory:/x\n", V2),  # the process is in none of version 2
        ("0::/x\n", V1),
        ("0::/docker/abcd\n", BOUND),  # beside what is mounted
        ("0::/../x\n", V2),  # outside of the namespace
    ],
)
def test_a_cgroup_that_is_not_mounted_is_none(cgroup: str, mountinfo: str) -> None:
    with pytest.raises(NoCgroup, match="mounted"):
        own_cgroup(cgroup, mountinfo)


def test_counters_are_read_by_name() -> None:
    text = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 1\noom_group_kill 1\n"
    assert parse_counters(text) == {"low": 0, "high": 0, "max": 12, "oom": 3, "oom_kill": 1, "oom_group_kill": 1}


def test_memory_leaves_out_cache_and_files() -> None:
    stat = {"anon": 10**6, "file": 700, "shmem": 500, "sock": 4000, "kernel_stack": 300, "pagetables": 200}
    stat |= {"slab": 9000, "slab_reclaimable": 2000}
    assert memory_of(stat, WrittenFiles(0, 400)) == 10**6 + (500 - 400) + 4000 + (300 + 200 + 9000 - 2000)
    later = stat | {"kernel": 12_000}  # since Linux 5.18: with 2500 of pipes and the like
    assert memory_of(later, WrittenFiles(3, 400)) == 10**6 + (500 - 400) + 4000 + (12_000 - 2000 - 3 * 1024)
    assert memory_of(stat, WrittenFiles(50, 600)) == 10**6 + 4000  # files that others have paid for


# ---- what is ours to divide: directories that look like cgroups ------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a directory that looks like a cgroup that this account may divide, with this process in it."""
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return tmp_path


def test_this_process_moves_into_a_leaf_before_its_cgroup_is_divided(tree: Path) -> None:
    assert _divided(tree) == tree
    assert (tree / "envgym.host" / "cgroup.procs").read_text() == str(os.getpid())
    assert (tree / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_process_in_the_leaf_divides_the_cgroup_above_it(tree: Path) -> None:
    (tree / "cgroup.procs").write_text("")
    assert _divided(tree / "envgym.host") == tree
    assert not (tree / "envgym.host").exists()


@pytest.mark.parametrize(
    "file, text, got",
    [
        ("procs", f"{os.getppid()}\n{os.getpid()}\n", "holds processes that this one has not started"),
        ("procs", f"0\n{os.getpid()}\n", "holds processes that this one has not started"),  # out of the namespace
        ("controllers", "hugetlb pids\n", r"lacks the controllers memory$"),
    ],
    ids=["of a parent", "of another namespace", "without controllers"],
)
def test_a_cgroup_of_others_or_without_controllers_is_left_alone(tree: Path, file: str, text: str, got: str) -> None:
    (tree / f"cgroup.{file}").write_text(text)
    before = sorted(tree.iterdir())
    with pytest.raises(NoCgroup, match=got):
        _divided(tree)
    assert sorted(tree.iterdir()) == before


def test_a_cgroup_that_cannot_be_divided_is_as_before(tree: Path) -> None:
    (tree / "cgroup.subtree_control").mkdir()  # so that it cannot be written
    with pytest.raises(IsADirectoryError):
        _divided(tree)
    assert (tree / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize("oom, is_ours", [(0, False), (1, True)], ids=["of the machine", "its own"])
def test_only_a_cgroup_at_its_own_limit_was_out_of_memory(tmp_path: Path, oom: int, is_ours: bool) -> None:
    cgroup = Cgroup(CgroupMaker(), tmp_path / "1", 10 * MIB, 5)
    (tmp_path / "1" / "memory.events").write_text(f"max {oom}\noom {oom}\noom_kill 2\n")
    assert cgroup.was_out_of_memory() is is_ours


def test_a_cgroup_that_takes_no_process_is_an_infrastructure_failure(tmp_path: Path) -> None:
    cgroup = Cgroup(CgroupMaker(), tmp_path / "1", 10 * MIB, 5)
    (tmp_path / "1" / "cgroup.procs").mkdir()
    with pytest.raises(ToolInfraFailure, match="cgroup must be able to take processes"):
        cgroup.add(os.getpid())


# ---- where there is one ----------------------------------------------------------------------------------------------

LIMITS = Limits(wall_s=60.0, cpu_s=60.0, memory=64 * MIB, processes=16, disk=MIB)
HOG = "import mmap\nm = mmap.mmap(-1, 2**28)\nfor i in range(0, 2**28, 4096): m[i] = 1"
HOST = """
import os, sys
from envgym.sandbox import PythonSession, why_counted
from envgym.sandbox._cgroup import shared_cgroups
assert why_counted() is None, why_counted()
python = PythonSession()
python.run("x = 42")
print(shared_cgroups()._own, flush=True)
"""


@pytest.fixture
def own(bwrap: Sandbox) -> Path:
    """Give the cgroup that holds those of all sandboxes, and see that this process can have one."""
    reason = why_counted()
    if reason is not None:
        pytest.skip(reason)
    path = shared()._own
    assert path is not None
    return path


def names(own: Path) -> set[str]:
    return {path.name for path in own.iterdir() if path.is_dir()}


def cgroup_of(python: PythonSession) -> Path:
    assert python._remote is not None
    assert python._remote.cgroup is not None
    return python._remote.cgroup._path


def host(then: str) -> Path:
    """Run a process that holds a session, and return the cgroup that it made for its sandboxes."""
    process = subprocess.run([sys.executable, "-c", HOST + then], capture_output=True, check=False, text=True)
    assert process.stdout, process.stderr
    return Path(process.stdout.split()[0])


def test_a_program_runs_in_a_cgroup_of_its_own_that_ends_with_it(own: Path) -> None:
    with shared().making(LIMITS.memory + LIMITS.disk, LIMITS.processes + 2) as cgroup:
        assert cgroup is not None
        started, process = _start(Program(argv=["sh", "-c", "sleep 99; true"]), LIMITS, cgroup)
        path = cgroup._path
        assert path.parent == own
        inside = {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
        assert started.pid in inside
        assert os.getpid() not in inside
        settings = {name: (path / name).read_text().strip() for name in ("memory.max", "memory.oom.group", "pids.max")}
        assert settings == {"memory.max": str((64 + 1 + 64) * MIB), "memory.oom.group": "1", "pids.max": "18"}
        assert cgroup.measure(0).processes == len(inside)
        cgroup.kill()
        assert select.select([process], [], [], 30)[0] == [process]
    close_all(process, started.stdout, started.stderr, started.report)
    shared()._remove_left()
    assert not path.exists()


def test_the_kernel_holds_memory_where_nobody_looks(own: Path, bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch, "_LOOK_S", 1e9)
    before = names(own)
    done = bwrap.run(["python3", "-I", "-S", "-c", HOG], limits=LIMITS)
    assert (done.ending, done.exit_code) == (RunEnding.MEMORY, -1)
    assert names(own) <= before


def test_pipes_are_memory_and_files_are_not(own: Path, bwrap: Sandbox) -> None:
    limits = Limits(wall_s=60.0, cpu_s=60.0, memory=40 * MIB, disk=48 * MIB)
    hold = "import time; time.sleep(0.5); print('good')"
    pipes = (
        "import fcntl, os\nheld = [os.pipe() for _ in range(60)]\nfor _, end in held:\n"
        "  fcntl.fcntl(end, 1031, 2**20); os.set_blocking(end, False); os.write(end, bytes(2**20))\n"
    )
    assert bwrap.run(["python3", "-I", "-S", "-c", pipes + hold], limits=limits).ending is RunEnding.MEMORY
    files = "with open('x', 'wb') as file:\n  for _ in range(44): file.write(bytes(2**20))\n"
    assert bwrap.run(["python3", "-I", "-S", "-c", files + hold], limits=limits).stdout == b"good\n"


def test_the_kernel_ends_one_fork_of_a_session_and_no_other(own: Path) -> None:
    with PythonSession(LIMITS) as python:
        assert python.run("x = 42").error is None
        with python.fork() as twin:
            assert cgroup_of(twin) != cgroup_of(python)
            (cgroup_of(twin) / "memory.max").write_text(str(16 * MIB))  # less than whoever counts would see
            result = twin.run(HOG.replace("2**28", "2**25") + "\nm.close()")
            assert (result.error, result.ending) == ("SessionEnded", RunEnding.MEMORY)
            assert python.run("x").output == "42\n"
            assert twin.run("x").error == "NameError"
    shared()._remove_left()
    assert not names(own)


def test_what_a_session_starts_is_in_its_cgroup_and_its_time_counts_there(own: Path) -> None:
    with PythonSession(LIMITS) as python:
        python.run(
            "import subprocess, time\np = subprocess.Popen(['cat'], bufsize=0, stdin=-1, stdout=-1)\n"
            "p.stdin.write(b'x'); p.stdout.read(1)"
        )
        inside = (cgroup_of(python) / "cgroup.procs").read_text().split()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in inside]
        assert len(inside) == 2
        assert (cgroup_of(python) / "pids.max").read_text() == f"{2 * (LIMITS.processes + MAX_CLONES)}\n"
        assert b"cat\0" in commands
        assert python._remote is not None
        assert python._remote.cgroup is not None
        before = python._remote.cgroup.cpu_s()
        python.run("while time.process_time() < 0.5: pass")
        assert python._remote.cgroup.cpu_s() - before > 0.2


def test_a_process_that_was_killed_leaves_nothing_to_the_next_one(own: Path) -> None:
    left = host("os.kill(os.getpid(), 9)")
    assert left.parent == own.parent
    assert left.exists()
    following = host("")
    assert following != left
    assert not left.exists()
    assert not following.exists()
    assert own.exists()  # that of a process that lives is not touched


def test_a_forked_process_makes_its_own_and_leaves_those_of_its_parent(own: Path) -> None:
    then = (
        "pid = os.fork()\nif pid == 0:\n  mine = PythonSession()\n  mine.run('1')\n  del python\n"
        "  assert mine.run('2').output == '2\\n'\n  print(shared_cgroups()._own, flush=True)\n  mine.close()\n"
        "  shared_cgroups().close()\n  os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n"
        "assert python.run('x').output == '42\\n'\nprint('good')"
    )
    process = subprocess.run([sys.executable, "-c", HOST + then], capture_output=True, check=False, text=True)
    parent, child, good = process.stdout.split()
    assert (good, process.returncode) == ("good", 0)
    assert parent != child
    assert not Path(parent).exists()
    assert not Path(child).exists()
