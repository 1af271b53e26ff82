"""Turns per second through `envgym serve --protocol openenv` on loopback, beside our own protocol and OpenEnv's server.

Run: python -m benchmarks.openenv_server [--rounds 5]. Prints one JSON line. The env echoes the action. Server and
client are two processes; the CPU time of a turn is given for both. The sides take turns, and medians count.
Where the package `openenv` is installed (.venv-connect/bin/python), its client plays our server and its own.
Target on two idle cores: at least 2,600 turns per second in one session.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

import envgym
from benchmarks._options import print_result, read_options
from benchmarks.env_server import ECHO, TURNS, served, time_openenv, time_sessions, wait_for

TARGETS: Final = {"one_per_s": 2600}
_OPENENV: Final = "openenv"
_PORT: Final = "8791"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(rounds: int) -> dict[str, Any]:
    """Measure all sides in turns."""
    figures: dict[str, list[float]] = {}
    with ExitStack() as stack:
        command = ("-m", "envgym", "serve", ECHO, "--port", "0")
        ours = stack.enter_context(served(*command, "--protocol", "openenv"))
        own = stack.enter_context(served(*command))
        url = ours.url.removesuffix(f"/{ECHO}")
        make = partial(envgym.make, f"openenv://{url.removeprefix('http://')}", max_turns=None)
        make_own = partial(envgym.make, own.url)
        sides: dict[str, tuple[Callable[[], float], int]] = {
            "one": (lambda: time_sessions(make, 1), ours.pid),
            "sixteen": (lambda: time_sessions(make, 16), ours.pid),
            "own_protocol_one": (lambda: time_sessions(make_own, 1), own.pid),
            "own_protocol_sixteen": (lambda: time_sessions(make_own, 16), own.pid),
        }
        if find_spec(_OPENENV) is not None:
            theirs = stack.enter_context(served("-m", "benchmarks.env_server", "--openenv-port", _PORT))
            wait_for(theirs.url)
            sides |= {
                "their_client_one": (lambda: asyncio.run(time_openenv(url, 1, "text")), ours.pid),
                "their_server_one": (lambda: asyncio.run(time_openenv(theirs.url, 1)), theirs.pid),
            }
        for _ in range(rounds + 1):  # the first warms up
            for name, (side, server) in sides.items():
                client_s, server_s = time.process_time(), cpu_seconds(server)
                figures.setdefault(f"{name}_per_s", []).append(side())
                figures.setdefault(f"{name}_client_ms", []).append(1e3 * (time.process_time() - client_s) / TURNS)
                figures.setdefault(f"{name}_server_ms", []).append(1e3 * (cpu_seconds(server) - server_s) / TURNS)
    medians = {name: statistics.median(values[1:]) for name, values in figures.items()}
    medians["times_own_protocol"] = medians["one_per_s"] / medians["own_protocol_one_per_s"]
    if "their_server_one_per_s" in medians:
        medians["times_their_server"] = medians["their_client_one_per_s"] / medians["their_server_one_per_s"]
    return {name: round(value, 3) for name, value in medians.items()}


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, rounds=5)
    versions = {_OPENENV: version(_OPENENV)} if find_spec(_OPENENV) is not None else {}
    print_result("openenv_server", **measure(options.rounds), targets=TARGETS, versions=versions)


if __name__ == "__main__":
    main()
