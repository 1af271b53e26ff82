"""Cost of isolation: programs and sessions in the bwrap sandbox against a bare subprocess, taken in turns in one run.

Run: python -m benchmarks.sandbox [--repeat 60] [--throughput 120] [--humaneval] [--docker] [--peers].
Prints one JSON line. What is timed:

    bare         subprocess.run(python3 -I -S -c "print(1+1)"), no isolation
    cold         the same program in a fresh sandbox
    warm         a new session (a fork of a running interpreter, in namespaces of its own) runs the same code and ends
    call, fork   in a session that runs; a fork counts with the first call on the new side
    per second   8 at a time
    humaneval    seconds for the 164 references, graded one after another
    docker       the same program in a container that waited for it, and in one started for it
    gem          gem-llm's Python tool as it comes: a bare subprocess of `python` in a directory on the disk
    smolagents   smolagents' local executor: an interpreter of its own inside this process, no isolation
"""

import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, closing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from tempfile import TemporaryDirectory

import envgym
from benchmarks._options import print_result, read_options
from envgym.sandbox import BwrapSandbox, DockerSandbox, PythonSession, Sandbox, why_unusable
from envgym.sandbox._layout import PYTHON

CODE = "print(1+1)"
ARGV = (PYTHON, "-I", "-S", "-c", CODE)
IN_FLIGHT = 8
Run = Callable[[], None]


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def bare() -> None:
    subprocess.run(ARGV, check=True, capture_output=True)


def cold() -> None:
    done = BwrapSandbox().run(ARGV)
    assert done.stdout == b"2\n", done


def warm() -> None:
    with PythonSession() as session:
        assert session.run(CODE).output == "2\n"


def fork(session: PythonSession) -> None:
    with session.fork() as fork:
        assert fork.run("x").output == "1\n"


def installed_peers() -> dict[str, Run]:
    """Return how other projects run the same code, those that are installed here."""
    peers: dict[str, Run] = {}
    if find_spec("gem") is not None:
        tool = import_module("gem.tools.python_code_tool").PythonCodeTool()

        def gem() -> None:
            _, _, output, _ = tool.execute_action(f"<python>{CODE}</python>")
            assert output.endswith(": 2\n\n"), output

        peers["gem"] = gem
    if find_spec("smolagents") is not None:
        executor_of = import_module("smolagents.local_python_executor").LocalPythonExecutor

        def smolagents() -> None:
            executor = executor_of([])
            executor.send_tools({})
            assert executor(CODE).logs == "2\n"

        peers["smolagents"] = smolagents
    return peers


def latencies(repeat: int, runs: Mapping[str, Run]) -> dict[str, float]:
    """Return medians and the fastest, the kinds taken in turns so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in (*runs, "call", "fork")}
    for _ in range(repeat):
        for name, run in runs.items():
            times[name].append(milliseconds(run))
        with PythonSession() as session:
            session.run("x = 1")
            times["call"].append(milliseconds(partial(session.run, "x")))
            times["fork"].append(milliseconds(partial(fork, session)))
    medians = {f"{name}_ms": round(median(taken), 2) for name, taken in times.items()}
    return medians | {f"{name}_fastest_ms": round(min(taken), 2) for name, taken in times.items()}


def per_second(call: Callable[[], None], count: int) -> float:
    """Return how many calls a second end, with `IN_FLIGHT` at a time."""
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        start = time.perf_counter()
        list(pool.map(lambda _: call(), range(count)))
        return round(count / (time.perf_counter() - start), 1)


def grade_references() -> float:
    """Return the seconds that HumanEval's 164 references take, each graded as an agent's answer."""
    env = envgym.make("code/humaneval-v0")
    start = time.perf_counter()
    for index in range(164):
        env.reset(options={"index": index})
        assert env.step(env.oracle()).reward == 1.0
    return round(time.perf_counter() - start, 1)


def in_docker(repeat: int) -> dict[str, float]:
    """Return the same figures for containers; a warm one has had time to start."""

    def once(sandbox: Sandbox) -> None:
        done = sandbox.run(["python3", *ARGV[1:]])
        assert done.stdout == b"2\n", done

    with closing(DockerSandbox(warm=0)) as sandbox:
        cold_ms = [milliseconds(partial(once, sandbox)) for _ in range(repeat)]
        cold_per_s = per_second(partial(once, sandbox), repeat)
    with closing(DockerSandbox(warm=IN_FLIGHT)) as sandbox:
        warm_ms = []
        for _ in range(repeat):
            once(sandbox)
            time.sleep(2.0)  # the next one starts meanwhile
            warm_ms.append(milliseconds(partial(once, sandbox)))
    figures = {"docker_cold_ms": median(cold_ms), "docker_warm_ms": median(warm_ms), "docker_per_s": cold_per_s}
    return {name: round(figure, 2) for name, figure in figures.items()}


def main() -> None:
    """Measure `--repeat` runs of each kind, and `--throughput` of each at a time, and print one line."""
    options = read_options(__doc__, repeat=60, throughput=120, humaneval=False, peers=False, docker=False)
    reason = why_unusable(BwrapSandbox())
    if reason is not None:
        raise SystemExit(reason)
    runs: dict[str, Run] = {"bare": bare, "cold": cold, "warm": warm} | (installed_peers() if options.peers else {})
    with TemporaryDirectory() as directory, chdir(directory):  # gem-llm leaves its directories in the current one
        result: dict[str, object] = dict(latencies(options.repeat, runs))
        for name, run in runs.items():
            result[f"{name}_per_s"] = per_second(run, options.throughput)
    for name in ("cold", "warm"):
        result[f"{name}_ratio"] = round(float(str(result[f"{name}_ms"])) / float(str(result["bare_ms"])), 2)
    if options.humaneval:
        result["humaneval_s"] = grade_references()
    if options.docker:
        result |= in_docker(max(3, options.repeat // 6))
    print_result("sandbox", **result)


if __name__ == "__main__":
    main()
