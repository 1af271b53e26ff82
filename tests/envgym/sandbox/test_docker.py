"""The docker back-end: what its containers may, what is left of them, and whose fault it is when one fails.

Programs that come back as asked are tested with the other back-ends in `test_bwrap`, hostile ones in `test_attacks`.
"""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from envgym.errors import InvalidInput, ToolInfraFailure
from envgym.sandbox import MIB, DockerSandbox, Limits, RunEnding, Sandbox, make_sandbox, why_unusable
from envgym.sandbox import docker as back_end
from envgym.sandbox._docker_engine import BOOT, LABEL, DockerEngine, _program, owner
from envgym.sandbox._docker_guest import READY, REPORT_SIZE

if TYPE_CHECKING:
    from docker import APIClient

QUICK = Limits(wall_s=20.0, memory=64 * MIB, processes=8, output=1000, disk=MIB)
SLEEP = ("python3", "-I", "-S", "-c", "print(flush=True); import time; time.sleep(99)")


@pytest.fixture
def engine(docker: Sandbox) -> Iterator["APIClient"]:
    from docker import from_env

    api = from_env().api
    yield api
    api.close()


def ids(engine: "APIClient", whose: str = "") -> list[str]:
    """Return the containers of a process, this one if none is named."""
    listed = engine.containers(all=True, filters={"label": [f"{LABEL}={whose or owner()}"]})
    return [str(item["Id"]) for item in listed]


def num_running(engine: "APIClient", whose: str = "") -> int:
    return len(engine.containers(filters={"label": [f"{LABEL}={whose or owner()}"]}))


def waiting(sandbox: DockerSandbox) -> list[str]:
    """Return the containers that wait for a program of this sandbox."""
    return [container.id for _, container in back_end._shared.pool(sandbox)._idle]


def users(engine: "APIClient", id: str) -> list[str]:
    """Return who a container's processes are on the host; nobody where it does not run."""
    from docker.errors import APIError

    try:
        return [row[1] for row in engine.top(id, "-o pid,uid")["Processes"]]
    except APIError:
        return []


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sandboxes meet no engine that an earlier one has found."""
    monkeypatch.setattr(back_end, "_shared", back_end._Shared())


def python(sandbox: Sandbox, code: str, limits: Limits = QUICK) -> tuple[RunEnding, bytes]:
    done = sandbox.run(["python3", "-I", "-S", "-c", code], limits=limits)
    return done.ending, done.stdout + done.stderr


def until(is_so: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait for what the engine does in its own time."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_so()


# ---- without an engine


def test_settings_are_checked_before_the_engine_is_asked() -> None:
    with pytest.raises(InvalidInput, match="image must be a name"):
        DockerSandbox("")
    with pytest.raises(InvalidInput, match="warm must be at least 0, got -1"):
        DockerSandbox(warm=-1)


def test_back_end_is_made_by_name_with_an_image_behind_a_colon_and_is_a_value() -> None:
    assert make_sandbox("docker") == DockerSandbox()
    assert make_sandbox("docker:python:3.12-slim") == DockerSandbox(image="python:3.12-slim")
    assert pickle.loads(pickle.dumps(DockerSandbox(warm=3))) == DockerSandbox(warm=3)


def test_missing_sdk_is_an_infra_failure_that_names_the_extra(no_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(ToolInfraFailure, match=r"docker's SDK must be installed, .*envgym\[docker\]"):
        DockerSandbox().run(["true"])


def test_a_dead_engine_is_an_infrastructure_failure_in_one_sentence(
    no_engine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    pytest.importorskip("docker.errors", reason="the docker back-end needs the extra docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    reason = why_unusable(DockerSandbox())
    assert reason is not None
    assert reason.startswith(
        "Docker engine must carry out the request, got [Errno 2] No such file or directory (sandbox); start it"
    )


def test_the_first_process_needs_nothing_but_python_and_ends_when_the_host_hangs_up() -> None:
    command = [sys.executable, "-I", "-S", "-c", BOOT]
    done = subprocess.run(command, input=_program(), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (READY, b"")


# ---- walls


@pytest.mark.docker
def test_a_container_has_no_network_no_rights_no_mounts_and_hard_limits(docker: Sandbox, engine: "APIClient") -> None:
    with closing(DockerSandbox(warm=1)) as sandbox:
        sandbox.run(["true"], limits=QUICK)
        assert until(lambda: bool(waiting(sandbox)))
        known = engine.inspect_container(waiting(sandbox)[0])
    host, config = known["HostConfig"], known["Config"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert (host["Privileged"], host["Binds"], host["PidMode"], host["IpcMode"]) == (False, None, "", "private")
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Memory"] == host["MemorySwap"] == QUICK.memory + QUICK.disk + 32 * MIB
    assert (host["PidsLimit"], host["LogConfig"]["Type"]) == (QUICK.processes + 1, "none")
    assert config["User"] == "1000:1000"
    assert not any("SECRET" in word or "TOKEN" in word for word in config["Env"])


@pytest.mark.docker
@pytest.mark.parametrize(
    "code",
    [
        "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
        "open('/proc/1/mem', 'rb')",
        "open('/proc/1/fd/1', 'wb')",
        "import ctypes; raise PermissionError if ctypes.CDLL(None).process_vm_readv(1, 0, 0, 0, 0, 0) < 0 else None",
    ],
)
def test_the_process_that_reports_cannot_be_reached(docker: Sandbox, code: str) -> None:
    ending, said = python(docker, code)
    assert (ending, b"PermissionError" in said) == (RunEnding.EXITED, True)


@pytest.mark.docker
def test_a_program_cannot_write_its_own_report(docker: Sandbox) -> None:
    report = json.dumps({"code": 0, "cpu_s": 0.0, "memory": 1, "over": None})
    fake = ("0" * 32 + report).ljust(REPORT_SIZE)
    code = f"import os\nfor stream in 1, 2: os.write(stream, {fake!r}.encode())\nos._exit(3)"
    done = docker.run(["python3", "-I", "-S", "-c", code], limits=QUICK)
    assert (done.exit_code, done.stdout, done.stderr) == (3, fake.encode(), fake.encode())


@pytest.mark.docker
def test_a_program_cannot_hold_the_report_back(docker: Sandbox) -> None:
    code = "import os\nfor s in 1, 2: os.set_blocking(s, False)\nos.write(1, b'x' * 900); os.close(1); os.close(2)"
    assert python(docker, code) == (RunEnding.EXITED, b"x" * 900)


@pytest.mark.docker
def test_output_may_be_as_long_as_the_limit_and_no_longer(docker: Sandbox) -> None:
    for size, ending in ((1000, RunEnding.EXITED), (1001, RunEnding.OUTPUT), (1200, RunEnding.OUTPUT)):
        assert python(docker, f"import os; os.write(1, b'a' * 600); os.write(2, b'b' * {size - 600})") == (
            ending,
            b"a" * 600 + b"b" * 400,
        )


ORPHANS = """import os, time
def fork():
  while True:
    try: return os.fork()
    except BlockingIOError: time.sleep(0.01)  # on a busy machine, until an orphan has ended and was waited for
for n in range(40):
  if fork() == 0:
    fork()
    os._exit(0)
  os.wait()
print(n)"""


@pytest.mark.docker
def test_orphans_are_waited_for(docker: Sandbox) -> None:
    assert python(docker, ORPHANS) == (RunEnding.EXITED, b"39\n")  # 80 processes, never more than 8


@pytest.mark.docker
def test_files_that_do_not_fit_are_an_infrastructure_failure(docker: Sandbox) -> None:
    with pytest.raises(ToolInfraFailure, match="files must fit into the sandbox, got No space left on device"):
        docker.run(["true"], files={"big": bytes(2 * MIB)}, limits=QUICK)
    assert docker.run(["wc", "-c", "fits"], files={"fits": bytes(900_000)}, limits=QUICK).stdout == b"900000 fits\n"


@pytest.mark.docker
@pytest.mark.parametrize(
    "command",
    [
        "echo 'int puts(const char*); int main(void) { puts(\"42\"); }' > a.c && gcc -w a.c -o a && ./a",
        "node -e 'console.log(6 * 7)'",
        "sqlite3 :memory: 'select 6 * 7'",
    ],
)
def test_image_runs_other_languages(docker: Sandbox, command: str) -> None:
    done = docker.run(["sh", "-c", command])
    if done.exit_code == 127:
        pytest.skip(f"the image lacks it: {done.stderr.decode()}")
    assert done.stdout == b"42\n", done


# ---- what is left


@pytest.mark.docker
def test_the_next_program_finds_a_waiting_container_and_close_leaves_none(docker: Sandbox, engine: "APIClient") -> None:
    docker.close()
    with closing(DockerSandbox(warm=1)) as sandbox:
        sandbox.run(["true"], limits=QUICK)
        assert until(lambda: bool(waiting(sandbox)))
        (first,) = waiting(sandbox)
        said = sandbox.run(["cat", "/proc/self/cgroup", "/proc/self/mountinfo"], limits=QUICK).stdout
        assert first.encode() in said  # the engine's files of that very container
        assert until(lambda: waiting(sandbox) not in ([], [first]))
        sandbox.close()
        assert ids(engine) == []
        assert sandbox.run(["true"], limits=QUICK).is_success
    assert ids(engine) == []


@pytest.mark.docker
def test_without_warm_containers_none_waits(docker: Sandbox) -> None:
    with closing(DockerSandbox(warm=0)) as sandbox:
        assert sandbox.run(["true"], limits=QUICK).is_success
        assert waiting(sandbox) == []


@pytest.mark.docker
def test_containers_of_a_killed_process_end_and_are_removed_by_the_next(docker: Sandbox, engine: "APIClient") -> None:
    code = (
        "from envgym.sandbox import DockerSandbox, Limits\nfrom envgym.sandbox._docker_engine import owner\n"
        f"print(owner(), flush=True)\nDockerSandbox(warm=1).run({SLEEP!r}, limits=Limits(wall_s=99))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        whose = process.stdout.readline().strip()
        assert until(lambda: num_running(engine, whose) == 2)  # the program's, and the next one
        process.kill()
    assert until(lambda: num_running(engine, whose) == 0)
    assert len(ids(engine, whose)) == 2
    DockerEngine().close()
    assert ids(engine, whose) == []


# ---- failures


@pytest.mark.docker
def test_a_container_killed_from_outside_is_never_a_result(docker: Sandbox, engine: "APIClient") -> None:
    docker.close()
    failures: list[str] = []

    def run() -> None:
        with closing(DockerSandbox(warm=0)) as sandbox:
            try:
                sandbox.run(SLEEP, limits=QUICK)
            except ToolInfraFailure as failure:
                failures.append(str(failure))

    running = threading.Thread(target=run)
    running.start()
    assert until(lambda: any(len(users(engine, id)) == 2 for id in ids(engine)))
    (id,) = ids(engine)
    assert users(engine, id) == ["1000", "1000"]  # on the host too
    engine.kill(id)
    running.join()
    assert failures == [
        "container must run until it reports, got an end from outside with code 137 (sandbox); run it again."
    ]


@pytest.mark.docker
def test_a_container_that_died_while_it_waited_is_not_used(docker: Sandbox, engine: "APIClient") -> None:
    with closing(DockerSandbox(warm=1)) as sandbox:
        sandbox.run(["true"], limits=QUICK)
        assert until(lambda: bool(waiting(sandbox)))
        engine.kill(waiting(sandbox)[0])
        engine.wait(waiting(sandbox)[0])
        assert sandbox.run(["true"], limits=QUICK).is_success


@pytest.mark.docker
def test_missing_image_and_one_without_python_are_infrastructure_failures(docker: Sandbox, engine: "APIClient") -> None:
    with pytest.raises(ToolInfraFailure, match=r"docker image must be on this machine, got envgym-none .*docker build"):
        DockerSandbox("envgym-none").run(["true"])
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("nothing"))
    engine.import_image_from_data(empty.getvalue(), repository="envgym-empty")
    try:
        with pytest.raises(ToolInfraFailure, match=r"Docker engine must carry out the request, got .*python3"):
            DockerSandbox("envgym-empty").run(["true"])
        DockerSandbox("envgym-empty").close()
    finally:
        engine.remove_image("envgym-empty")


@pytest.mark.docker
def test_many_runs_with_failures_at_once_leave_nothing(docker: Sandbox, engine: "APIClient") -> None:
    docker.close()
    limits = Limits(wall_s=0.5, memory=64 * MIB, processes=8, output=1000, disk=MIB)
    commands = (
        ["true"],
        ["sh", "-c", "kill -ABRT $$"],
        ["sh", "-c", "sleep 99 & sleep 99 & echo left"],
        ["sh", "-c", "while :; do echo x; done"],
        ["sleep", "99"],
        ["no-such-program"],
    )
    before = len(os.listdir("/proc/self/fd"))
    with closing(DockerSandbox(warm=2)) as sandbox, ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(sandbox.run, commands[number % 6], limits=limits) for number in range(18)]
        ends = ["missing" if run.exception() else run.result().ending for run in runs]
    wanted = [{RunEnding.EXITED}, {RunEnding.SIGNALED}, {RunEnding.EXITED}, {RunEnding.OUTPUT, RunEnding.WALL_TIME}]
    wanted += [{RunEnding.WALL_TIME}]
    for number, end in enumerate(ends):
        assert end == "missing" if number % 6 == 5 else end in {*wanted[number % 6], RunEnding.WALL_TIME}
    assert ids(engine) == []
    assert len(os.listdir("/proc/self/fd")) <= before + 25  # as many connections as the SDK keeps
