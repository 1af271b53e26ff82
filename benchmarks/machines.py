"""Cost of machines: start, commands, shell, files, forks, against the docker command line, taken in turns in one run.

Run: python -m benchmarks.machines [--repeat 10] [--at-once 8] [--image envgym-sandbox].
Prints one JSON line. What is timed, in milliseconds:

    docker_run   docker run --rm --network none IMAGE true, by the command line
    start        a machine from the same image, until its first process answers
    close        removing it
    docker_exec  docker exec of `true` in a running container
    run          machine.run(["true"])
    shell        a call of a shell that runs
    put, get     a file of 1 KiB
    fork         a machine that wrote one file; a copy that runs one command
    remote_shell a call of a shell over HTTP, on this machine
    at_once      seconds for so many machines that start, call a shell 5 times and close, at the same time
"""

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median

from benchmarks._options import print_result, read_options
from envgym.runtime.event_loop import LoopThread
from envgym.sandbox import make_machines
from envgym.sandbox.machines import Machine, MachineBackend, MachineShell, MachineSpec
from envgym.sandbox.machines.server import MachineServer

CALL_S = 60.0


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def starts(machines: MachineBackend, spec: MachineSpec, repeat: int) -> dict[str, list[float]]:
    """Return the times of docker run, of starting a machine and of closing it, in turns."""
    times: dict[str, list[float]] = {"docker_run": [], "start": [], "close": []}
    for _ in range(repeat):
        words = ("run", "--rm", "--network", "none", "--entrypoint", "true", spec.image)
        times["docker_run"].append(milliseconds(lambda: docker(*words)))  # noqa: B023  # called at once
        started: list[Machine] = []
        times["start"].append(milliseconds(lambda: started.append(machines.start(spec))))  # noqa: B023
        times["close"].append(milliseconds(started[0].close))
    return times


def calls(machines: MachineBackend, spec: MachineSpec, repeat: int) -> dict[str, list[float]]:
    """Return the times of calls of a machine and of docker exec, in turns."""
    times: dict[str, list[float]] = {}
    with ExitStack() as closing:
        machine = machines.start(spec)
        closing.callback(machine.close)
        container = docker("run", "--rm", "-d", "--network", "none", "--entrypoint", "sleep", spec.image, "600")
        closing.callback(docker, "rm", "-f", container)
        server = MachineServer(machines)
        thread = LoopThread("machine-server")
        url = thread.run(server.listen("127.0.0.1", 0))
        closing.callback(lambda: thread.close(end(server)))
        remote = make_machines(f"remote:{url}").start(spec)
        closing.callback(remote.close)
        shell, remote_shell = MachineShell(machine), MachineShell(remote)
        shell.run("true", CALL_S)
        remote_shell.run("true", CALL_S)
        timed: dict[str, Callable[[], object]] = {
            "docker_exec": lambda: docker("exec", container, "true"),
            "run": lambda: machine.run(["true"], timeout_s=CALL_S),
            "shell": lambda: shell.run("cd /tmp; x=$((x + 1))", CALL_S),
            "put": lambda: machine.put({"a": bytes(1024)}, "/data"),
            "get": lambda: machine.get("/data"),
            "remote_shell": lambda: remote_shell.run("cd /tmp; x=$((x + 1))", CALL_S),
        }
        for _ in range(10 * repeat):
            for name, call in timed.items():
                times.setdefault(name, []).append(milliseconds(call))
        for _ in range(repeat):
            times.setdefault("fork", []).append(milliseconds(lambda: fork(machine)))
    return times


async def end(server: MachineServer) -> None:
    await server.close()


def fork(machine: Machine) -> None:
    copy = machine.fork()
    try:
        assert copy.run(["true"], timeout_s=CALL_S).is_success
    finally:
        copy.close()


def play(machines: MachineBackend, spec: MachineSpec) -> None:
    machine = machines.start(spec)
    try:
        shell = MachineShell(machine)
        for number in range(5):
            assert shell.run(f"echo {number}", CALL_S).output == b"%d\n" % number
    finally:
        machine.close()


def main() -> None:
    options = read_options(__doc__, repeat=10, at_once=8, image="envgym-sandbox")
    machines, spec = make_machines("docker"), MachineSpec(image=options.image, user="0")
    first_s = milliseconds(lambda: machines.start(spec).close()) / 1e3
    times = starts(machines, spec, options.repeat) | calls(machines, spec, options.repeat)
    with ThreadPoolExecutor(options.at_once) as threads:
        many = milliseconds(lambda: list(threads.map(lambda _: play(machines, spec), range(options.at_once)))) / 1e3
    middle = {name: round(median(values), 2) for name, values in times.items()}
    print_result(
        "machines",
        **{f"{name}_ms": value for name, value in middle.items()},
        start_ratio=round(middle["start"] / middle["docker_run"], 2),
        shell_ratio=round(middle["shell"] / middle["docker_exec"], 3),
        first_start_s=round(first_s, 2),
        at_once=options.at_once,
        at_once_s=round(many, 2),
    )


if __name__ == "__main__":
    main()
