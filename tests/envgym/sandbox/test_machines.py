"""Machines on Docker: commands, the shell that keeps its state, files, forks, images and what is left of them.

Hostile commands are in `test_machine_attacks`.
"""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envgym.errors import ForkUnsupported, InvalidInput, ToolError, ToolInfraFailure
from envgym.sandbox import MIB, RunEnding
from envgym.sandbox._docker_engine import LABEL, connect
from envgym.sandbox.machines import Machine, MachineBackend, MachineShell
from envgym.sandbox.machines._container import DockerMachine
from tests.envgym.sandbox.conftest import SMALL
from tests.envgym.sandbox.left_behind import left_behind

if TYPE_CHECKING:
    from docker import APIClient

pytestmark = pytest.mark.docker
LONG = 60.0
"""Seconds for commands that end by themselves, on a busy machine too."""


@pytest.fixture
def api(machines: MachineBackend) -> "Iterator[APIClient]":
    client = connect()
    yield client
    client.close()


def say(machine: Machine, command: str, user: str | None = None) -> str:
    """Return what a command that succeeds writes."""
    done = machine.run(command, timeout_s=LONG, user=user)
    assert done.is_success, done
    return done.output.decode()


def id_of(machine: Machine) -> str:
    """Return the container of a machine."""
    assert isinstance(machine, DockerMachine)
    return machine._container.id


def test_the_page_shows_what_a_machine_does(machines: MachineBackend) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text("utf-8")
    space: dict[str, object] = {}
    for line in re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1].splitlines():
        code, is_shown, value = line.partition("  # ")
        if is_shown:
            assert eval(code, space) == eval(value), line
        else:
            exec(line, space)


# ---- commands


def test_a_command_gets_its_words_input_user_directory_and_variables(machine: Machine) -> None:
    done = machine.run(
        ["sh", "-c", "cat; echo $A $B; pwd; id -u; echo wrong >&2; exit 3"],
        timeout_s=LONG,
        stdin=b"in\n",
        env={"A": "a b", "B": "$A"},
        workdir="/tmp",
        user="1000:1000",
    )
    assert (done.exit_code, done.ending) == (3, RunEnding.EXITED)
    assert done.output == b"in\na b $A\n/tmp\n1000\nwrong\n"


def test_files_stay_and_variables_do_not(machine: Machine) -> None:
    assert say(machine, "pwd; echo kept > file; x=1; cd /") == "/work\n"
    assert say(machine, "cat file; echo [$x]") == "kept\n[]\n"


def test_endings_of_commands(machine: Machine) -> None:
    assert machine.run(["no-such-program"], timeout_s=LONG).exit_code == 127
    signalled = machine.run("kill -TERM $$", timeout_s=LONG)
    assert (signalled.ending, signalled.exit_code) == (RunEnding.SIGNALED, 128 + 15)
    stopped = machine.run("echo first; sleep 99", timeout_s=3.0)
    assert (stopped.ending, stopped.exit_code, stopped.output) == (RunEnding.WALL_TIME, -1, b"first\n")


def test_long_output_is_cut_in_the_middle(machine: Machine) -> None:
    done = machine.run("echo begin; yes | head -c 300000; echo end", timeout_s=LONG, output=101)
    assert (len(done.output), done.dropped) == (101, 300010 - 101)
    assert done.output.startswith(b"begin\ny\n")
    assert done.output.endswith(b"y\nend\n")
    assert f"\n[{300010 - 101} bytes left out]\n" in done.text


@pytest.mark.parametrize(
    "command, options, must",
    [
        ([], {}, "command must be text"),
        ("a\0b", {}, "command must be text"),
        ("true", {"timeout_s": 0.0}, "timeout_s must be positive"),
        ("true", {"workdir": "tmp"}, "path must be absolute"),
        ("true", {"user": "bob"}, "user must be a user of the machine, got bob"),
        ("true", {"env": {"A=B": ""}}, "environment variable must have a name"),
        (["true"], {"shell": "one"}, "command of a shell must be a text"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_leaves_the_machine_as_it_is(
    machine: Machine, command: str, options: dict[str, float], must: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{must}"):
        machine.run(command, **{"timeout_s": LONG, **options})  # type: ignore[arg-type]  # wrong on purpose
    assert say(machine, "echo on") == "on\n"


# ---- the shell


def test_a_shell_keeps_directory_variables_functions_status_and_jobs(machine: Machine) -> None:
    shell = MachineShell(machine, user="1000")
    assert shell.run("cd /tmp; x=5; export Y=6; f() { echo f$1; }; sleep 99 & false", LONG).exit_code == 1
    done = shell.run("echo $?; pwd; f $x; printenv Y; jobs; id -u", LONG)
    assert done.output == b"1\n/tmp\nf5\n6\n[1]+  Running                 sleep 99 &\n1000\n"
    assert MachineShell(machine).run("pwd; echo [$x]", LONG).output == b"/work\n[]\n"


@pytest.mark.parametrize("command", ["if", "echo 'a", "cat", "read a", "f() {", "exec 250>&-", "echo x >&250"])
def test_a_shell_survives_commands_that_are_broken_or_read(machine: Machine, command: str) -> None:
    shell = MachineShell(machine)
    shell.run("x=1", LONG)
    assert not shell.run(command, LONG).is_shell_lost
    assert shell.run("echo $x 'it''s' \"\\n\"", LONG).output == b"1 its \\n\n"


def test_a_shell_that_ends_or_is_stopped_is_replaced(machine: Machine) -> None:
    shell = MachineShell(machine, workdir="/tmp")
    shell.run("sleep 999 & x=1; cd /", LONG)
    for command, seconds, exit_code in (("exit 3", LONG, 3), ("kill -9 $$", LONG, 137), ("sleep 99", 0.3, -1)):
        done = shell.run(command, seconds)
        assert (done.is_shell_lost, done.exit_code) == (True, exit_code)
        assert shell.run("pwd; echo [$x]", LONG).output == b"/tmp\n[]\n"
    lines = "{ for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done; } 2>/dev/null"
    assert say(machine, f"{lines} | grep -c '^sleep 999 '") == "1\n"  # the job goes on


def test_a_long_command_reaches_the_shell_whole(machine: Machine) -> None:
    text = "x" * 100_000
    assert MachineShell(machine).run(f"cat <<'END' | wc -c\n{text}\nEND", LONG).output == b"100001\n"


# ---- files


def test_files_go_in_and_come_out(machine: Machine, tmp_path: Path) -> None:
    machine.put({"a/b.txt": b"b", "c": b"\0\xff"}, "/data/in", owner="1000", mode=0o640)
    assert say(machine, "stat -c '%a %u %n' /data/in/c /data/in/a/b.txt") == (
        "640 1000 /data/in/c\n640 1000 /data/in/a/b.txt\n"
    )
    look = "stat -c '%a %u %n' /data /data/in /data/in/a"
    assert say(machine, look) == "755 0 /data\n750 1000 /data/in\n750 1000 /data/in/a\n"
    assert machine.get("/data/in") == {"a/b.txt": b"b", "c": b"\0\xff"}
    assert machine.get("/data/in/c") == {"c": b"\0\xff"}
    assert machine.get("/nothing") == {}
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran")
    (tmp_path / "run.sh").chmod(0o755)
    machine.put_folder(tmp_path, "/data/in", is_fresh=True)
    assert (say(machine, "/data/in/run.sh"), list(machine.get("/data"))) == ("ran\n", ["in/run.sh"])


def test_files_beyond_the_limit_are_refused(machine: Machine) -> None:
    machine.run("head -c 1000000 /dev/zero > big; mkdir many; cd many; seq 10 | xargs touch", timeout_s=LONG)
    assert len(machine.get("/work/big", max_bytes=1_000_000)["big"]) == 1_000_000
    with pytest.raises(ToolError, match="files must be within the limits, got more than 999999 bytes"):
        machine.get("/work", max_bytes=999_999)
    assert sorted(machine.get("/work/many"), key=int) == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "", "a/../b", "\0"])
def test_a_file_outside_the_directory_is_refused(machine: Machine, path: str) -> None:
    with pytest.raises(InvalidInput, match=r"^file must lie in the directory"):
        machine.put({path: b""}, "/data")


# ---- forks


def test_a_fork_has_the_files_and_nothing_is_shared(machine: Machine) -> None:
    machine.run("echo 1 > file", timeout_s=LONG)
    MachineShell(machine).run("true", LONG)  # one that waits is no obstacle
    fork = machine.fork()
    try:
        assert say(fork, "cat file; pwd; id -u") == "1\n/work\n0\n"
        fork.run("echo 2 > file", timeout_s=LONG)
        second = fork.fork()
        fork.close()
        assert (say(machine, "cat file"), say(second, "cat file")) == ("1\n", "2\n")
        second.close()
    finally:
        fork.close()


def test_a_shell_is_copied_into_a_fork_with_its_state(machine: Machine) -> None:
    shell = MachineShell(machine, user="1000")
    shell.run(
        'cd /tmp; x=\'a b\n\\\'; declare -a y=(1 "2 3"); export Z=1; f() { echo "f$1"; }; set -u; umask 027', LONG
    )
    shell.run("(exit 7)", LONG)
    fork = machine.fork()
    try:
        copy = shell.fork(fork)
        shell.run("true; x=1; cd /", LONG)
        look = 'echo $? $PWD $(id -u) $(umask); echo "$x"; echo ${#y[@]}; printenv Z; f 1; echo $undefined'
        assert copy.run(look, LONG).output.startswith(b"7 /tmp 1000 0027\na b\n\\\n2\n1\nf1\n")
        assert shell.run("echo $x", LONG).output == b"1\n"
        shell.run("big=$(printf '%0200000d' 1)", LONG)
        with pytest.raises(ForkUnsupported, match=r"^shell must have a state of text below"):
            shell.fork(fork)
    finally:
        fork.close()


def test_a_machine_with_a_running_process_is_not_forked(machine: Machine) -> None:
    machine.run("sleep 99 & until grep -q sleep /proc/$!/comm; do :; done", timeout_s=LONG)
    with pytest.raises(ForkUnsupported, match="machine must run no process, got sleep"):
        machine.fork()
    machine.end_processes()
    machine.fork().close()


# ---- images


def test_an_image_is_built_once_for_the_same_context(
    machines: MachineBackend, api: "APIClient", tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(
        "FROM base:1 AS first\nFROM first\nCOPY a /srv/a\nENV KEY=value LD_PRELOAD=/none.so\nWORKDIR /srv\nUSER 1000\n"
    )
    (tmp_path / "a").write_text("1")
    bases = {"base:1": "envgym-sandbox"}
    image = machines.build(tmp_path, bases=bases)
    try:
        created = api.inspect_image(image)["Created"]
        (tmp_path / "a").touch()
        assert machines.build(tmp_path, bases=bases) == image
        assert api.inspect_image(image)["Created"] == created
        (tmp_path / "a").write_text("2")
        other = machines.build(tmp_path, bases=bases)
        assert other != image
        api.remove_image(other)
        started = machines.start(replace(SMALL, image=image, user=None, workdir=None))
        try:
            lines = say(started, "pwd; cat a; echo; id -u; echo $KEY").splitlines()
            assert [line for line in lines if "LD_PRELOAD" not in line] == ["/srv", "1", "1000", "value"]
        finally:
            started.close()
    finally:
        api.remove_image(image)


@pytest.mark.parametrize(
    "text, must",
    [
        ("FROM envgym-sandbox\nRUN echo no cake; false\n", "Dockerfile must build, got exit code 1 of RUN .* no cake"),
        ("FROM envgym-sandbox\nRUN exit 3 | nonsense", "Dockerfile must build"),
        ("HELLO", "Dockerfile must build, got .*"),
        ("FROM $BASE\n", r"FROM must name an image if bases are given, got \$BASE"),
    ],
)
def test_a_dockerfile_that_does_not_build_is_one_sentence(
    machines: MachineBackend, tmp_path: Path, text: str, must: str
) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    with pytest.raises(InvalidInput, match=must) as failure:
        machines.build(tmp_path, bases={"a": "envgym-sandbox"})
    assert "\n" not in str(failure.value)


def test_a_step_that_says_nothing_is_given_up_in_time(machines: MachineBackend, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM envgym-sandbox\nRUN sleep 60 # {tmp_path}\n")
    with pytest.raises(ToolInfraFailure):
        machines.build(tmp_path, timeout_s=3.0)


def test_commands_of_a_dockerfile_have_limits(
    machines: MachineBackend, api: "APIClient", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envgym.sandbox.machines._build.BUILD_MEMORY", 64 * MIB)
    hungry = """python3 -c 'len(b"x" * (512 << 20))'"""
    (tmp_path / "Dockerfile").write_text(f"FROM envgym-sandbox\nRUN {hungry}; echo $? > /tmp/code # {tmp_path}\n")
    image = machines.build(tmp_path)
    try:
        started = machines.start(replace(SMALL, image=image))
        try:
            assert started.get("/tmp/code") == {"code": b"137\n"}
        finally:
            started.close()
    finally:
        api.remove_image(image)


def test_a_context_without_a_dockerfile_and_an_unknown_image_are_refused(
    machines: MachineBackend, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"^Dockerfile must be a file of the context"):
        machines.build(tmp_path)
    with pytest.raises(InvalidInput, match=r"^docker image must be on this machine, got envgym-none"):
        machines.start(replace(SMALL, image="envgym-none"))


# ---- what is left


def test_a_container_has_no_mount_of_the_host_few_rights_and_hard_limits(machine: Machine, api: "APIClient") -> None:
    container = api.inspect_container(id_of(machine))
    host = container["HostConfig"]
    assert (host["NetworkMode"], host["Privileged"], host["Binds"], host["PidMode"]) == ("none", False, None, "")
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert not {"SYS_ADMIN", "SYS_PTRACE", "MKNOD", "NET_RAW", "SYS_CHROOT", "SETFCAP"} & set(host["CapAdd"])
    assert host["Memory"] == host["MemorySwap"] == SMALL.memory + 32 * MIB
    assert (host["PidsLimit"], host["NanoCpus"]) == (SMALL.processes + 2, 10**9)
    (mounted,) = container["Mounts"]
    assert (mounted["Type"], mounted["Destination"], mounted["RW"]) == ("volume", "/.envgym", False)


def test_machines_of_a_killed_process_end_and_are_removed_by_the_next(
    machines: MachineBackend, api: "APIClient"
) -> None:
    code = (
        "from envgym.sandbox import DockerSandbox\nfrom envgym.sandbox._docker_engine import owner\n"
        "from tests.envgym.sandbox.conftest import SMALL\nmachine = DockerSandbox().start(SMALL)\n"
        "machine.fork()\nprint(owner(), flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        filters = {"label": [f"{LABEL}={owner}"]}
        ids = [item["Id"] for item in api.containers(filters=filters)]
        assert (len(ids), len(api.images(filters=filters)), len(api.volumes(filters=filters)["Volumes"])) == (2, 1, 1)
        process.kill()
    for id in ids:
        api.wait(id)  # the guest ends when the host hangs up
    started = subprocess.run(
        [sys.executable, "-c", "from envgym.sandbox.machines._engine import MachineEngine; MachineEngine().close()"],
        check=True,
        timeout=120,
    )
    assert started.returncode == 0
    assert api.containers(all=True, filters=filters) == []
    assert api.images(all=True, filters=filters) == []
    assert not api.volumes(filters=filters)["Volumes"]


def test_a_machine_killed_from_outside_is_never_a_result(machine: Machine, api: "APIClient") -> None:
    failures: list[str] = []

    def run() -> None:
        try:
            machine.run("sleep 99", timeout_s=99)
        except ToolInfraFailure as failure:
            failures.append(str(failure))

    running = threading.Thread(target=run)
    running.start()
    api.kill(id_of(machine))
    running.join()
    with pytest.raises(ToolInfraFailure, match=r"^machine must run, got an end with code 137"):
        machine.run("true", timeout_s=LONG)
    assert failures == ["machine must run, got an end with code 137 (machines); start another one."]


def test_more_processors_than_there_are_mean_all_of_them(machines: MachineBackend, api: "APIClient") -> None:
    with closing(machines.start(replace(SMALL, cpus=1000.0))) as machine:
        assert api.inspect_container(id_of(machine))["HostConfig"]["NanoCpus"] == api.info()["NCPU"] * 10**9


def test_many_machines_at_once_leave_nothing(machines: MachineBackend) -> None:
    before = left_behind()

    def play(number: int) -> bytes:
        with closing(machines.start(SMALL)) as machine:
            shell = MachineShell(machine)
            shell.run(f"x={number}; sleep 99 &", LONG)
            return shell.run("echo $x", LONG).output

    with ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(play, range(16)))
    assert outputs == [b"%d\n" % number for number in range(16)]
    assert left_behind() == before
