"""Starts processes of a run on the nodes of a Ray cluster, through the one process that speaks with Ray."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final

from envgym.errors import RunError, SettingsError
from envgym.runtime.processes.handles import PARENT_VARIABLE, describe_code, import_variables
from envgym.runtime.processes.log import LOG_VARIABLE
from envgym.runtime.ray.placement import Placement, PlacementRequest

_PASSED_ON: Final = ("ENVGYM_", "HF_", "NCCL_", "GLOO_", "TORCH_", "TOKENIZERS_", "VLLM_")
"""How the names of environment variables begin that processes on other nodes have, too."""
_OF_THIS_PROCESS: Final = {PARENT_VARIABLE, LOG_VARIABLE, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}
_OF_LOCAL_CLUSTER: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Settings of Ray, unless they are set: it tells nobody, and its processes wait for no others."""
_START_S = 60.0
"""Longest wait for the start of a process by its actor."""
_CLOSE_S = 20.0
"""Longest wait for the driver's end."""
_SPARE_S: Final = 5.0
"""By which the driver's own deadline comes earlier, with a better sentence."""


class RayProcess:
    """A process on a node of the cluster."""

    def __init__(self, starter: "RayStarter", role: str, host: str) -> None:
        self.pid, self.memory_mib = 0, 0.0
        self.returncode: int | None = None
        self._starter, self._role, self._host = starter, role, host
        self._reason = ""
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.started = threading.Event()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take note of what the driver tells."""
        if event["event"] == "started":
            self.pid = event["pid"]
            self.started.set()
            return
        if event["event"] == "lost":
            self.lose(event["reason"])
            return
        self.memory_mib = event["memory_mib"]
        for line in event["lines"]:
            self._lines.put(line.encode("latin-1"))
        if event["code"] is not None:
            self._end(event["code"])

    def lose(self, reason: str) -> None:
        """Take note that nothing will be heard of it any more."""
        if not self._ended.is_set():
            self._reason = reason
            self._end(None)

    def _end(self, code: int | None) -> None:
        self.returncode, self.memory_mib = code, 0.0
        self._lines.put(None)
        self._ended.set()
        self.started.set()

    def lines(self) -> Iterator[bytes]:
        while (line := self._lines.get()) is not None:
            yield line

    def wait(self) -> None:
        self._ended.wait()

    def describe_ending(self) -> str:
        if not self._ended.is_set():
            return ""
        if self.returncode is None:
            return f"the loss of its actor on node {self._host}: {self._reason}"
        return f"{describe_code(self.returncode)} on node {self._host}"

    def send_signal(self, number: int) -> None:
        if self.started.is_set():  # also where it is taken as lost: it may run
            self._starter.order(do="signal", role=self._role, number=number)


class RayStarter:
    """Starts processes where a cluster has placed them."""

    def __init__(self, request: PlacementRequest) -> None:
        """Start the driver, and ask it to place the processes; `wait_placed` comes next."""
        self._request = request
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._empty = TemporaryDirectory(prefix="envgym-ray-")
        self._driver = subprocess.Popen(
            [sys.executable, "-P", "-m", "envgym.runtime.ray.driver"],
            cwd=self._empty.name,  # which Ray lets its workers import from
            env={**_OF_LOCAL_CLUSTER, **os.environ, **import_variables(os.environ)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a Ctrl-C of the terminal is for this process, which ends all in order
        )
        self._lock = threading.Lock()
        self._processes: dict[str, RayProcess] = {}
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.placement = Placement()
        self._reader = threading.Thread(target=self._read, name="ray", daemon=True)
        self._reader.start()
        self.order(**request.to_json())

    def wait_placed(self) -> Placement:
        """Wait until all are placed. Raises: SettingsError: they cannot be; it says what is missing."""
        deadline, is_connected = time.monotonic() + self._request.timeout_s + _SPARE_S, False
        while True:
            try:
                answer = self._answers.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                answer, got = None, "no answer"
            else:
                got = self._last_error()
            if answer is None:
                what = "the Ray cluster" if is_connected else f"the Ray cluster at {self._request.address}"
                must = f"{'place the processes' if is_connected else 'answer'} within {self._request.timeout_s:g} s"
                do = "see that it runs (ray status) and is reached from here, or raise launch.ray.timeout_s"
                raise SettingsError.of(what, must, got, where="launch.ray", do=do)
            if answer["event"] == "refused":
                raise SettingsError(answer["error"])
            if answer["event"] == "placed":
                self.placement = Placement(hosts=answer["hosts"], host=answer["host"], gpus=tuple(answer["gpus"]))
                return self.placement
            is_connected = True

    def start(self, role: str, command: Sequence[str], environment: Mapping[str, str]) -> RayProcess:
        """As in `ProcessStarter`. Raises: RunError: its actor does not answer."""
        process = RayProcess(self, role, self.placement.hosts[role])
        self._processes[role] = process
        passed = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_PASSED_ON) and name not in _OF_THIS_PROCESS
        }
        self.order(do="start", role=role, command=list(command), environment={**passed, **environment})
        deadline = time.monotonic() + _START_S
        while not process.started.wait(0.2):
            is_over = self._driver.poll() is not None or time.monotonic() > deadline
            must, do = f"start within {_START_S:g} s", "look at its node in Ray's dashboard"
            RunError.unless(not is_over, role, must, "no answer", where="launch.ray", do=do)
        return process

    def order(self, **fields: object) -> None:
        """Write a line to the driver, unless it has ended."""
        assert self._driver.stdin is not None, "it is a pipe"
        with suppress(OSError, ValueError), self._lock:
            self._driver.stdin.write(json.dumps(fields) + "\n")
            self._driver.stdin.flush()

    def close(self) -> None:
        """Give back what was reserved; all processes end, if they have not."""
        if not self.placement.host:  # it may wait for a cluster that does not answer; with it Ray ends what it began
            self._driver.kill()
        with suppress(OSError), self._lock:
            assert self._driver.stdin is not None, "it is a pipe"
            self._driver.stdin.close()
        try:
            self._driver.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        self._reader.join()
        self._errors.close()
        self._empty.cleanup()

    def _read(self) -> None:
        """Pass on what the driver tells; at its end nothing is heard of any process."""
        assert self._driver.stdout is not None, "it is a pipe"
        with self._driver.stdout as output:
            for line in output:
                event = json.loads(line)
                if "role" in event:
                    self._processes[event["role"]].take(event)
                else:
                    self._answers.put(event)
        self._answers.put(None)
        for process in list(self._processes.values()):
            process.lose(f"the process that speaks with Ray has ended: {self._last_error()}")

    def _last_error(self) -> str:
        with suppress(ValueError, OSError):
            text = os.pread(self._errors.fileno(), 4000, max(os.fstat(self._errors.fileno()).st_size - 4000, 0))
            lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
            return lines[-1].strip() if lines else "no word of why"
        return "no word of why"


def check_installed() -> None:
    """See that Ray is there. Raises: SettingsError: it is not."""
    do = "run: pip install 'envgym[ray]'"
    SettingsError.unless(
        find_spec("ray"), "Ray", "be installed for launcher ray", "none", where="launch.launcher", do=do
    )


@contextmanager
def placed_by_ray(request: PlacementRequest) -> Iterator[RayStarter]:
    """Reserve a place for processes on a cluster for a block.

    Raises: SettingsError: there is no Ray, no cluster, or it cannot run them; it says what must hold.
    """
    check_installed()
    starter = RayStarter(request)
    try:
        starter.wait_placed()
        yield starter
    finally:
        starter.close()
