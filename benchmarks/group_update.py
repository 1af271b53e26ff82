"""What a weight update over one group takes with one server and with several, by gloo.

Run: python -m benchmarks.group_update [--servers 8] [--gb 0.1] [--repeats 3] [--mbit 200]. Prints one JSON line.

`transfer` is the network's part: processes that receive the weights and drop them. With `--mbit` every process has a
network of its own in which it sends and receives at most so many Mbit/s, as machines do; this needs Linux and root, and
all processes together need less processor time than the transfer takes. With `--mbit 0` all of them use loopback.

`update` is a whole update of transformers policy servers on loopback: copies, digests, requests, and checks. Every
server does this work, so on a machine with fewer cores than servers the time grows with their number.

The figures are medians in seconds by the number of servers, and `ratio` is the last one over the first.
"""

import ctypes
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from benchmarks._options import print_result, read_options
from envgym.agents.policies.weights.collective import GroupAddress, RunGroup, WeightGroup

_NEW_NETWORK: Final = 0x40000000
"""`CLONE_NEWNET` of Linux."""
_CPU: Final = torch.device("cpu")


def enter_new_network() -> None:
    """Give this thread, and those that it starts, a network without any connection. Raises: OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "a network of its own needs Linux and root; use --mbit 0")


def run_ip(words: str) -> None:
    """Run a command of iproute2. Raises: CalledProcessError."""
    subprocess.run(words.split(), check=True)


def connect(number: int, pid: int, mbit: int) -> str:
    """Connect a process to the bridge of this network by a cable of a speed, and return its address.

    Args:
        number: of the process.
        pid: of a process with a network of its own, or of this one.
        mbit: Mbit/s in each direction.
    """
    address, here, there = f"10.77.0.{number + 1}", f"here{number}", f"there{number}"
    limit = f"root tbf rate {mbit}mbit burst 256kb latency 200ms"
    inside = f"nsenter -t {pid} -n"
    run_ip(f"ip link add {here} type veth peer name {there}")
    run_ip(f"ip link set {here} master bridge up")
    run_ip(f"tc qdisc add dev {here} {limit}")
    if pid != os.getpid():
        run_ip(f"ip link set {there} netns {pid}")
    run_ip(f"{inside} ip link set lo up")
    run_ip(f"{inside} ip addr add {address}/24 dev {there}")
    run_ip(f"{inside} ip link set {there} up")
    run_ip(f"{inside} tc qdisc add dev {there} {limit}")
    return address


def receive(to: Connection, has_network: bool) -> None:
    """In another process: receive and drop weights until told to end."""
    torch.set_num_threads(1)
    if has_network:
        enter_new_network()
    to.send(os.getpid())
    group = WeightGroup(GroupAddress(**to.recv()), _CPU)
    while to.recv():
        for _ in group.receive(group.receive_description()):
            pass
    group.close()


@contextmanager
def receivers(count: int, mbit: int) -> Iterator[tuple[str, list[Connection]]]:
    """Start processes that receive; yield the address of this one, and a pipe to each of them."""
    context, pipes = multiprocessing.get_context("spawn"), list[Connection]()
    processes = list[Any]()
    for _ in range(count):
        here, there = multiprocessing.Pipe()
        process = context.Process(target=receive, args=(there, mbit > 0), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    pids = [pipe.recv() for pipe in pipes]
    host = "127.0.0.1"
    if mbit:
        enter_new_network()
        run_ip("ip link add bridge type bridge")
        run_ip("ip link set bridge up")
        host = connect(0, os.getpid(), mbit)
        for number, pid in enumerate(pids, 1):
            connect(number, pid, mbit)
    try:
        yield host, pipes
    finally:
        for pipe in pipes:
            pipe.send(False)
        for process in processes:
            process.join(10)
            process.kill()


def measure_transfer(count: int, gigabytes: float, repeats: int, mbit: int) -> float:
    """Return the seconds in which so many processes receive weights: the median after a round that warms up."""
    weights = [(f"layer{number}", torch.rand(round(gigabytes * 1e9 / 40))) for number in range(10)]
    totals: list[float] = []
    with receivers(count, mbit) as (host, pipes):
        run = RunGroup(host, [f"server{number}" for number in range(count)], "gloo", _CPU, timeout_s=60)
        for name, pipe in zip(run.servers, pipes, strict=True):
            pipe.send(asdict(run.address(name)))
        run.open()
        for _ in range(repeats + 1):
            for pipe in pipes:
                pipe.send(True)
            began = time.perf_counter()
            run.send(weights)
            totals.append(time.perf_counter() - began)
        assert run.is_sound, "every server has received everything"
        run.close()
    return statistics.median(totals[1:])


def measure_update(count: int, gigabytes: float, repeats: int) -> float:
    """Return the seconds of a whole update of so many servers: the median after one that warms up."""
    from benchmarks.policy_server import OtherProcess, of_size, update_seconds  # transformers is heavy
    from envgym.agents.policies.serving.client import ServedPolicy
    from envgym.agents.policies.weights.transport import GroupTransport

    servers = [OtherProcess(gigabytes) for _ in range(count)]
    served = ServedPolicy([server.url for server in servers], transport=GroupTransport("gloo", device=_CPU))
    try:
        return statistics.median(update_seconds(served, of_size(gigabytes), repeats)[1:])
    finally:
        served.close()
        for server in servers:
            server.close()


def by_count(seconds: Sequence[float], counts: Sequence[int]) -> dict[str, object]:
    """Return figures by the number of servers, and the ratio of the last one to the first."""
    rounded = {str(count): round(value, 3) for count, value in zip(counts, seconds, strict=True)}
    return {**rounded, "ratio": round(seconds[-1] / seconds[0], 2)}


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, servers=8, gb=0.1, repeats=3, mbit=200)
    torch.set_num_threads(1)
    load, counts = round(os.getloadavg()[0], 1), (1, options.servers)
    updates = [measure_update(count, options.gb, options.repeats) for count in counts]
    transfers = [measure_transfer(count, options.gb, options.repeats, options.mbit) for count in counts]
    figures = {"transfer": by_count(transfers, counts), "update": by_count(updates, counts)}
    settings = {"gb": options.gb, "mbit": options.mbit, "repeats": options.repeats}
    print_result("group_update", **settings, **figures, load_before=load, torch=torch.__version__)


if __name__ == "__main__":
    main()
