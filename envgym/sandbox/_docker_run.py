"""One program in a container that waited for it: sends the order, collects the output, reads the report."""

import json
import secrets
import signal
import time

from envgym.errors import ToolInfraFailure
from envgym.sandbox._bwrap_start import limits_per_process
from envgym.sandbox._docker_engine import DockerEngine, WaitingContainer
from envgym.sandbox._docker_guest import REPORT_SIZE
from envgym.sandbox._watch import Fields, make_completed
from envgym.sandbox.records import Completed, Limits, Program, RunEnding

_DYING_S = 5.0
"""Seconds that a container may take to end its program; then the engine kills it."""


class _Stream:
    """What a program says on one stream: its beginning, its size, and its last bytes, which may be the report."""

    def __init__(self, limit: int, token: str) -> None:
        self._capacity = limit + REPORT_SIZE
        self._token = token.encode()
        self._content = bytearray()
        self._size = 0
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self._content += data[: max(0, self._capacity - len(self._content))]
        self._size += len(data)
        self._tail = (self._tail + data[-REPORT_SIZE:])[-REPORT_SIZE:]

    @property
    def report(self) -> bytes | None:
        """The report, without its token; None as long as there is none."""
        return self._tail[len(self._token) :] if self._tail.startswith(self._token) else None

    @property
    def size(self) -> int:
        """Bytes said; half a report counts, a whole one does not."""
        return self._size - (0 if self.report is None else REPORT_SIZE)

    @property
    def beginning(self) -> bytes:
        return bytes(self._content[: self.size])


class ContainerRun:
    """A program from its order to its report."""

    def __init__(self, engine: DockerEngine, waiting: WaitingContainer, limits: Limits) -> None:
        self._engine = engine
        self._waiting = waiting
        self._limits = limits
        self._token = secrets.token_hex(16)
        self._stdout, self._stderr = (_Stream(limits.output, self._token) for _ in range(2))
        self._ending: RunEnding | None = None

    def complete(self, program: Program) -> Completed:
        """Run a program to its end. Raises: ToolInfraFailure: the container is lost, or lacks the program."""
        begun = time.monotonic()
        try:
            self._waiting.send(_order(program, self._limits, self._token))
            report = self._follow(begun + self._limits.wall_s)
        except OSError as error:
            raise _lost(str(error) or type(error).__name__) from None
        return self._completed(report, time.monotonic() - begun)

    def _follow(self, deadline: float) -> Fields:
        killed = 0.0  # when the engine was asked to kill
        while self._stdout.report is None or self._stderr.report is None:
            now = time.monotonic()
            if self._ending is None and now >= deadline:
                deadline = self._stop(RunEnding.WALL_TIME)
            elif self._ending is not None and now >= deadline:
                if killed:
                    raise _lost("is still there after it was killed")
                self._engine.kill(self._waiting.id)
                killed, deadline = now, now + _DYING_S * 6
            try:
                answer = self._waiting.receive(deadline - now)
            except TimeoutError:
                continue
            if answer is None:
                return self._unreported()
            (self._stdout if answer[0] == 1 else self._stderr).feed(answer[1])
            if self._ending is None and self._stdout.size + self._stderr.size > self._limits.output + 2 * REPORT_SIZE:
                deadline = self._stop(RunEnding.OUTPUT)
        report: Fields = json.loads(self._stdout.report)
        return report

    def _stop(self, ending: RunEnding) -> float:
        """Ask the container to end its program; return when the engine must help. Raises: OSError."""
        self._ending = ending
        self._waiting.send(b"stop")
        return time.monotonic() + _DYING_S

    def _unreported(self) -> Fields:
        """Return the engine's report of a container that ended without its own. Raises: ToolInfraFailure."""
        ended = self._engine.ended(self._waiting.id)
        if self._ending is None and not ended.was_out_of_memory:
            raise _lost(f"an end from outside with code {ended.exit_code}")
        over = "MEMORY" if ended.was_out_of_memory else None
        return {"code": -signal.SIGKILL, "cpu_s": 0.0, "memory": self._limits.memory if over else 0, "over": over}

    def _completed(self, report: Fields, seconds: float) -> Completed:
        if "absent" in report:
            do = "install it in the image"
            raise ToolInfraFailure.of("program", "be installed", report["absent"], where="sandbox", do=do)
        if "failed" in report:
            do = "raise Limits.disk"
            raise ToolInfraFailure.of("files", "fit into the sandbox", report["failed"], where="sandbox", do=do)
        ending = self._ending
        if ending is None and report["over"] is not None:
            ending = RunEnding(report["over"])
        if ending is None and self._stdout.size + self._stderr.size > self._limits.output:
            ending = RunEnding.OUTPUT
        outputs = self._stdout.beginning, self._stderr.beginning
        return make_completed(report, self._limits, ending, *outputs, seconds=seconds)


def _order(program: Program, limits: Limits, token: str) -> bytes:
    fields = {
        "argv": list(program.argv),
        "files": {path: len(content) for path, content in program.files.items()},
        "stdin": len(program.stdin),
        "token": token,
        "cpu_s": limits.cpu_s,
        "memory": limits.memory,
        "limits": limits_per_process(limits),  # the engine holds the number of processes
    }
    return b"".join([json.dumps(fields).encode(), b"\n", *program.files.values(), program.stdin])


def _lost(got: str) -> ToolInfraFailure:
    return ToolInfraFailure.of("container", "run until it reports", got, where="sandbox", do="run it again")
