"""A few helper processes that answer requests line by line, shared by all threads, killed when they are too slow.

No signals, so it works in any thread; every process that is started is waited for; a forked child starts its own.
"""

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from envgym.core.json_types import JsonObject
from envgym.errors import EnvFailure

START_S = 600.0
"""Seconds until a new process must be ready: importing takes two on an idle machine; a crowded one is no failure."""
MAX_REQUESTS = 1000
"""A process is replaced after so many requests: what libraries cache grows."""

T = TypeVar("T")


class WorkerDied(Exception):
    """The process ended before it answered."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"the process ended with code {returncode}")
        self.returncode = returncode
        """Negative: the number of the signal that ended it."""


class WorkerHung(Exception):
    """The process did not answer in time; it has been killed."""


class Worker:
    """One process; used by one thread at a time."""

    def __init__(self, module: str) -> None:
        """Start `python -m module` and wait until it is ready. Raises: EnvFailure: it cannot serve.

        It sees the modules that this process sees and none beside its working directory (-P); strings hash alike in
        every one, so that what it answers does not depend on which process was asked.
        """
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for this process, which ends that one
        )
        self._unread = b""
        self.num_requests = 0
        try:
            ready = self.receive(START_S)
        except WorkerDied as death:
            got, do = f"exit code {death.returncode}", f"run `python -m {module}` to see why"
            raise self._failure("start", got, do, module) from None
        except WorkerHung:
            must, do = f"start within {START_S:g} s", "try again where the machine is less busy"
            raise self._failure(must, "no answer", do, module) from None
        if "failed" in ready:
            raise self._failure("be able to serve", str(ready["failed"]), "install what it needs", module)

    def _failure(self, must: str, got: str, do: str, module: str) -> EnvFailure:
        self.close()
        return EnvFailure.of("helper process", must, got, where=module, do=do)

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def send(self, request: JsonObject) -> None:
        """Write one request. Raises: WorkerDied."""
        self.send_line(json.dumps(request))

    def send_line(self, line: str) -> None:
        """Write one request that is JSON already. Raises: WorkerDied."""
        self.num_requests += 1
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerDied(self._process.wait()) from None

    def receive(self, timeout_s: float) -> Mapping[str, Any]:  # Any: decoded JSON
        """Read one line. Raises: WorkerDied; WorkerHung: after `timeout_s`, the process is killed."""
        deadline = time.monotonic() + timeout_s
        assert self._process.stdout is not None
        pipe, waiting = self._process.stdout.fileno(), select.poll()
        waiting.register(pipe, select.POLLIN)
        while b"\n" not in self._unread:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self.close()
                raise WorkerHung(f"no answer after {timeout_s:g} s")
            chunk = os.read(pipe, 65536)
            if not chunk:
                raise WorkerDied(self._process.wait())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill the process, wait for it, close its pipes."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Close this side's pipes only: for a forked child, whose process it is not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._process.returncode is None:
            self._process.returncode = 0


class WorkerPool:
    """Up to `size` processes of one module, started when needed."""

    def __init__(self, module: str, size: int, *, max_requests: int = MAX_REQUESTS) -> None:
        """Prepare the pool; no process is started yet, and each is replaced after `max_requests`."""
        self._module, self._max_requests = module, max_requests
        self._size = size
        self._lock = threading.Lock()
        self._renew()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _renew(self) -> None:
        self._workers: list[Worker] = []
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(self._size):
            self._free.put(None)

    def use(self, job: Callable[[Worker], T]) -> T:
        """Run `job` on a free process; wait for one if need be. Raises: EnvFailure: none starts; what `job` raises."""
        free = self._free
        worker = free.get()
        try:
            if worker is None or not worker.is_alive:
                self._drop(worker)
                worker = None
                worker = Worker(self._module)
                with self._lock:
                    self._workers.append(worker)
            result = job(worker)
            if worker.num_requests >= self._max_requests:
                self._drop(worker)
                worker = None
            return result
        except BaseException:  # an answer may still be on its way: this process cannot be asked again
            self._drop(worker)
            worker = None
            raise
        finally:
            free.put(worker)

    def _drop(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.close()
            with self._lock:
                self._workers = [other for other in self._workers if other is not worker]

    def close(self) -> None:
        """Kill all processes; later use starts new ones."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def _forget(self) -> None:
        for worker in self._workers:
            worker.forget()
        self._lock = threading.Lock()
        self._renew()
