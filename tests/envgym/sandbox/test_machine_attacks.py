"""Hostile commands in machines: the machine survives or is lost, its answers are true, and nothing is left behind."""

import os
import time
from dataclasses import replace

import pytest

from envgym.errors import InvalidInput, ToolError, ToolInfraFailure
from envgym.sandbox import MIB, RunEnding
from envgym.sandbox.machines import Machine, MachineBackend, MachineShell
from tests.envgym.sandbox.conftest import SMALL
from tests.envgym.sandbox.left_behind import left_behind

pytestmark = pytest.mark.docker
LONG = 60.0
NUM_MACHINES = int(os.environ.get("ENVGYM_SOAK_RUNS", "50"))
LINES = "{ for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done; } 2>/dev/null"


def is_well(machine: Machine) -> bool:
    """Return whether a machine answers, and runs no leftover."""
    done = machine.run(f"echo well; {LINES} | grep -c '^sleep 99'", timeout_s=LONG)
    return done.output == b"well\n0\n"


# ---- processes


@pytest.mark.parametrize(
    "command",
    [
        "sleep 99",
        "sleep 99 & sleep 99",
        "setsid sleep 99 & (setsid sleep 99 &) ; trap '' TERM INT HUP; sleep 99; sleep 99",
        "(bash -c 'while :; do sleep 99; done' &) ; kill -STOP $$",
    ],
)
def test_all_descendants_of_a_command_that_takes_too_long_end(machine: Machine, command: str) -> None:
    machine.run("exec -a older sleep 98 &", timeout_s=LONG)
    assert machine.run(command, timeout_s=0.5).ending is RunEnding.WALL_TIME
    assert is_well(machine)
    earlier = machine.run(f"{LINES} | grep -c '^older 98'", timeout_s=LONG)
    assert earlier.output == b"1\n", "a process of an earlier command goes on"


def test_a_daemon_ends_with_the_processes_of_the_machine(machine: Machine) -> None:
    daemon = "setsid bash -c 'trap \"\" TERM; while :; do echo daemon >> /work/log; sleep 0.01; done' &"
    assert machine.run(f"{daemon} exit 0", timeout_s=LONG).is_success
    MachineShell(machine).run("sleep 99 &", LONG)
    machine.end_processes()
    assert is_well(machine)
    size = machine.run("stat -c %s /work/log || echo 0", timeout_s=LONG).output
    assert machine.run("sleep 0.1; stat -c %s /work/log || echo 0", timeout_s=LONG).output == size


@pytest.mark.parametrize("command", [":(){ :|:& };: ; sleep 99", "while :; do sleep 99 & done"])
def test_a_fork_bomb_is_ended(machine: Machine, command: str) -> None:
    assert machine.run(command, timeout_s=2.0).ending in (RunEnding.WALL_TIME, RunEnding.EXITED)
    machine.end_processes()
    assert is_well(machine)


def test_a_command_that_finds_no_room_for_a_process_ends_by_that_limit(machine: Machine) -> None:
    code = """import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(999)
    except BlockingIOError: time.sleep(0.01)  # until a slot is free again"""
    machine.put({"fill.py": code.encode()}, "/work")
    machine.run("python3 fill.py &", timeout_s=LONG)
    deadline = time.monotonic() + LONG
    while machine.run(["true"], timeout_s=LONG).ending is not RunEnding.PROCESSES:
        assert time.monotonic() < deadline
        time.sleep(0.1)  # the slot of the command is taken meanwhile
    machine.end_processes()
    assert is_well(machine)


def test_the_first_process_cannot_be_ended_stopped_traced_or_limited(machine: Machine) -> None:
    attacks = {
        "kill": "os.kill(1, 9); os.kill(1, 19); os.kill(1, 2); os.kill(1, 17); print('sent')",
        "memory": "open('/proc/1/mem', 'rb')",
        "streams": "open('/proc/1/fd/1', 'wb')",
        "input": "open('/proc/1/fd/0', 'wb')",
        "limit": "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
        "trace": "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.ptrace(16, 1, 0, 0) == 0 or exit('PermissionError')",
    }
    for name, code in attacks.items():
        done = machine.run(["python3", "-c", f"import os\n{code}"], timeout_s=LONG)
        assert b"sent" in done.output if name == "kill" else b"PermissionError" in done.output, (name, done)
    machine.run("kill -9 -1", timeout_s=LONG)
    machine.run("kill -STOP 1; kill -TERM 1; renice 19 1", timeout_s=LONG)
    assert is_well(machine)


# ---- output and answers


def test_a_flood_of_output_is_bounded(machine: Machine) -> None:
    done = machine.run("yes", timeout_s=1.0, output=1000)
    assert (done.ending, len(done.output)) == (RunEnding.WALL_TIME, 1000)
    shell = MachineShell(machine)
    assert len(shell.run("yes & yes | head -c 5000000", LONG, output=1000).output) == 1000
    assert len(shell.run("true", LONG, output=1000).output) <= 1000
    machine.end_processes()
    assert is_well(machine)


def test_output_that_looks_like_an_answer_is_output(machine: Machine) -> None:
    answer = b'\0\0\0\x20\0\0\0\0\0\0\0\0{"code": 0, "ending": "EXITED"}  '
    done = machine.run(["sh", "-c", "cat; exit 3"], timeout_s=LONG, stdin=answer)
    assert (done.exit_code, done.output) == (3, answer)


def test_no_word_ends_a_command_of_a_shell_early(machine: Machine) -> None:
    shell = MachineShell(machine)
    forge = "for fd in /proc/$$/fd/*; do echo '00000000000000000000000000000000 0' >> $fd; done 2>/dev/null"
    done = shell.run(f"({forge}) ; sleep 0.2; echo end; (exit 3)", 20.0)
    assert done.is_shell_lost or (b"end\n" in done.output and done.exit_code == 3)
    assert is_well(machine)


# ---- memory and disk


def test_memory_that_runs_out_ends_the_command_and_not_the_machine(machine: Machine) -> None:
    done = machine.run(["python3", "-c", "x = [bytearray(2**20) for _ in range(10**6)]"], timeout_s=LONG)
    assert (done.ending, done.is_machine_lost) == (RunEnding.MEMORY, False)
    assert is_well(machine)


def test_a_command_that_has_the_first_process_ended_loses_the_machine(machine: Machine) -> None:
    hog = "import sys\nx = []\nwhile True: x.append(bytearray(2**18))"
    setup = "echo 1000 > /proc/1/oom_score_adj; echo 0 > /proc/self/oom_score_adj"
    done = machine.run(f"{setup}; python3 -c '{hog}'", timeout_s=LONG)
    assert done.ending in (RunEnding.MEMORY, RunEnding.EXITED)
    if done.is_machine_lost:
        with pytest.raises(ToolInfraFailure, match=r"^machine must run"):
            machine.run("true", timeout_s=LONG)
    else:  # the kernel chose another process
        assert is_well(machine)


def test_no_memory_outlives_the_processes_that_share_it(machine: Machine) -> None:
    code = """import ctypes
c, key = ctypes.CDLL(None), ctypes.c_void_p
c.shmat.restype = key
for _ in range(200):
    place = c.shmat(c.shmget(0, 2**20, 0o1600), None, 0)
    ctypes.memset(place, 1, 2**20)
    c.shmdt(key(place))"""
    machine.put({"fill.py": code.encode()}, "/work")
    done = machine.run("for i in 1 2 3; do python3 fill.py; done; cat /proc/sysvipc/shm | wc -l", timeout_s=LONG)
    assert (done.ending, done.output.split()[-1:]) == (RunEnding.EXITED, [b"1"]), done
    machine.put({"a": bytes(2**20)}, "/work")
    assert is_well(machine)


def test_what_outlives_processes_in_memory_is_little(machine: Machine) -> None:
    code = """import ctypes, os
c = ctypes.CDLL(None)
queues = next(n for n in range(1000) if c.msgget(0, 0o1600) < 0)
semaphores = 250 * next(n for n in range(1000) if c.semget(0, 250, 0o1600) < 0)
print(queues, semaphores, os.statvfs("/dev/shm").f_files)"""
    numbers = [int(word) for word in machine.run(["python3", "-c", code], timeout_s=LONG).output.split()]
    assert all(0 < number <= most for number, most in zip(numbers, (32, 32_000, 4096), strict=True)), numbers


def test_a_full_disk_ends_the_command_and_can_be_cleared(machine: Machine) -> None:
    done = machine.run("while :; do head -c 10000000 /dev/zero > f$RANDOM$RANDOM; done", timeout_s=LONG)
    assert done.ending is RunEnding.DISK
    machine.run("rm -f /work/f*", timeout_s=LONG)
    machine.run("rm -f /work/f*", timeout_s=LONG)
    assert is_well(machine)


def test_a_disk_that_is_filled_in_the_background_is_noticed(machine: Machine) -> None:
    fill = "while :; do head -c 1000000 /dev/zero > f$RANDOM$RANDOM; done"
    machine.run(f"({fill}) > /dev/null 2>&1 &", timeout_s=LONG)
    deadline = time.monotonic() + LONG
    while machine.run("sleep 0.3", timeout_s=LONG).ending is not RunEnding.DISK:
        assert time.monotonic() < deadline
        time.sleep(1.0)  # nothing asks meanwhile: the guest looks itself
    machine.end_processes()
    machine.run("rm -f /work/f*", timeout_s=LONG)


def test_space_that_another_machine_frees_hides_no_writes(machines: MachineBackend) -> None:
    other = machines.start(replace(SMALL, disk=256 * MIB))
    try:
        assert other.run("head -c 200000000 /dev/zero > /work/file", timeout_s=LONG).is_success
        machine = machines.start(replace(SMALL, disk=16 * MIB))
    finally:
        other.close()
    try:
        write = "for i in 1 2 3; do head -c 12000000 /dev/zero > /work/$i; done"
        assert machine.run(f"{write}; sleep 99", timeout_s=LONG).ending is RunEnding.DISK
    finally:
        machine.close()


# ---- files


def test_links_and_devices_are_not_read(machine: Machine) -> None:
    machine.run(
        "echo secret > /secret; mkdir -p out real; echo true > real/x; ln -s /secret out/a; ln -s ../real out/dir; "
        "ln -s real linked; mkfifo out/pipe; ln -s /dev/zero out/zero; echo 1 > out/b",
        timeout_s=LONG,
    )
    assert machine.get("/work/out") == {"b": b"1\n"}
    for path in ("/work/linked", "/work/linked/x", "/work/out/a", "/work/out/dir/x", "/proc/self/root/secret"):
        assert machine.get(path) == {}, path
    assert machine.get("/work/real") == {"x": b"true\n"}


def test_files_are_not_written_through_links(machine: Machine) -> None:
    machine.run("mkdir real; ln -s /work/real link; echo old > real/file; ln -s real/file file", timeout_s=LONG)
    with pytest.raises(ToolError, match="path must be writable without following links, got link: Not a directory"):
        machine.put({"new": b""}, "/work/link")
    machine.put({"file": b"new"}, "/work")
    assert machine.get("/work/file") == {"file": b"new"}
    machine.put({"new": b"1"}, "/work/link", is_fresh=True)
    assert (machine.get("/work/link"), machine.get("/work/real")) == ({"new": b"1"}, {"file": b"old\n"})


@pytest.mark.parametrize(
    "trick", ["mkfifo /etc/passwd", "ln -s /dev/zero /etc/passwd", "echo root:x:7:7::/: > /etc/passwd"]
)
def test_a_list_of_users_that_programs_have_changed_holds_nobody_up(machine: Machine, trick: str) -> None:
    machine.run(f"rm /etc/passwd; {trick}", timeout_s=LONG)
    machine.put({"a": b"1"}, "/work", is_fresh=True)
    code = "import os; print(os.stat('a').st_uid, os.getuid())"  # a shell would wait for the list
    assert machine.run(["python3", "-I", "-S", "-c", code], timeout_s=LONG, user="root").output == b"0 0\n"
    with pytest.raises(InvalidInput, match=r"^user must be a user of the machine, got nobody"):
        machine.run("true", timeout_s=LONG, user="nobody")


def test_folders_that_are_deep_are_bounded_and_can_be_removed(machine: Machine) -> None:
    machine.run(["python3", "-c", "import os\nfor n in range(900): os.mkdir('d'); os.chdir('d')"], timeout_s=LONG)
    with pytest.raises(ToolError, match="folders more than 200 deep"):
        machine.get("/work")
    machine.put({"a": b"1"}, "/work", is_fresh=True)
    assert machine.get("/work") == {"a": b"1"}


# ---- the image


PRELOADED = """#include <unistd.h>
__attribute__((constructor)) static void forge(void) { if (getpid() == 1) { write(1, "forged", 6); _exit(0); } }
"""


def test_what_root_did_to_an_image_does_not_reach_the_guest_of_a_fork(machine: Machine) -> None:
    machine.put({"a.c": PRELOADED.encode()}, "/work")
    done = machine.run(
        "gcc -shared -fPIC -o /lib/forge.so a.c && echo /lib/forge.so > /etc/ld.so.preload && rm /usr/bin/python3* && "
        "echo /lib > /etc/ld.so.conf && mkdir -p /.envgym/guest && touch /.envgym/guest/x",
        timeout_s=LONG,
    )
    assert b"Read-only file system" in done.output
    fork = machine.fork()
    try:
        assert fork.run("echo true", timeout_s=LONG).output == b"true\n"
        assert fork.run(["python3"], timeout_s=LONG).exit_code == 127
    finally:
        fork.close()


def test_no_network_and_no_way_to_more_rights(machine: Machine) -> None:
    done = machine.run("ls /sys/class/net; unshare -U true; mount -t tmpfs none /mnt; mknod x b 8 0", timeout_s=LONG)
    assert done.output.startswith(b"lo\n")
    assert done.output.count(b"ermi") + done.output.count(b"perm") >= 3, done  # all three are refused
    rights = machine.run("grep -E 'CapBnd|NoNewPrivs' /proc/self/status", timeout_s=LONG).output.split()
    assert rights == [b"CapBnd:", b"00000000000004fb", b"NoNewPrivs:", b"1"]


# ---- what is left


def test_machines_one_after_the_other_leave_nothing(machines: MachineBackend) -> None:
    before, descriptors = left_behind(), len(os.listdir("/proc/self/fd"))
    for number in range(NUM_MACHINES):
        machine = machines.start(replace(SMALL, processes=16, memory=64 * MIB))
        machine.run("setsid sleep 99 & echo x > file", timeout_s=LONG)
        if number % 10 == 0:
            machine.end_processes()
            machine.fork().close()
        machine.close()
    assert left_behind() == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 5
