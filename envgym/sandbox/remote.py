"""The remote back-end: machines of a server that speaks the protocol of `envgym.sandbox.machines.wire`.

Whatever is wrong with the connection or the server is a `ToolInfraFailure`, never a result.
"""

import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from envgym.errors import InfrastructureError, InvalidInput, ToolInfraFailure
from envgym.runtime.backoff import Backoff
from envgym.runtime.error_log import log_error
from envgym.runtime.http.client import BlockingConnection, HttpAnswer, encode_request, request_headers
from envgym.sandbox.machines import wire
from envgym.sandbox.machines.records import (
    DEFAULT_OUTPUT,
    MAX_GET,
    ROOT,
    CommandResult,
    Machine,
    MachineSpec,
    check_directory,
    check_env,
)
from envgym.sandbox.machines.requests import check_command, check_files, read_folder

_CONNECT_S: Final = 10.0
_RECONNECT_S: Final = 30.0
"""A server that cannot be reached is tried again for so long."""
_BUSY_S: Final = 600.0
"""Longest wait for room for a machine."""
_CALL_S: Final = 600.0
"""Longest request that runs no command and builds nothing."""
_GRACE_S: Final = 120.0
"""Beyond the time of a command or a build: the server gives it up itself."""
_RENEWALS: Final = 3
"""In the time of a lease."""
_BACKOFF: Final = Backoff(0.05, 2.0)

Fields = dict[str, Any]  # JSON


class RemoteSandbox:
    """Starts machines on a server, such as `envgym serve --protocol sandbox docker`; see `MachineBackend`.

    The server's token is read from the environment variable ENVGYM_SANDBOX_TOKEN.
    """

    def __init__(self, url: str) -> None:
        """Point at a server; nothing is sent. Raises: InvalidInput: the address is none."""
        self._client = _Client(url, os.environ.get(wire.TOKEN_VARIABLE))

    def build(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        bases: Mapping[str, str] = MappingProxyType({}),
        network: bool = False,
        timeout_s: float = 600.0,
    ) -> str:
        """Return the image that a Dockerfile describes, for this server. Raises: as `MachineBackend.build`."""
        files = read_folder(context)
        order = wire.Build(
            context=files, dockerfile=dockerfile, bases=dict(bases), network=network, timeout_s=timeout_s
        )
        return str(self._client.ask(order, within_s=timeout_s + _GRACE_S)["image"])

    def start(self, spec: MachineSpec) -> Machine:
        """Start a machine. Raises: as `MachineBackend.start`."""
        machine = RemoteMachine(self._client, secrets.token_hex(16))
        machine.start(spec)
        return machine

    def why_unavailable(self) -> str | None:
        """Return in one sentence why no machine can be started there, None if one can."""
        try:
            reason = self._client.ask(wire.Describe())["unavailable"]
        except (ToolInfraFailure, InvalidInput) as failure:
            return str(failure)
        return None if reason is None else str(reason)

    def close(self) -> None:
        """Close the connections that wait for a request; a later one opens another."""
        self._client.close_idle()


class RemoteMachine:
    """A machine of a server; see `Machine`."""

    def __init__(self, client: "_Client", id: str, number: int = 0) -> None:
        """Name a machine, which `start` or a fork makes."""
        self._client, self._id, self._number = client, id, number
        self._lock = threading.RLock()
        self._is_closed = False

    def start(self, spec: MachineSpec) -> None:
        """Let the server start it. Raises: as `MachineBackend.start`."""
        order = wire.Start(machine=self._id, number=0, spec=replace(spec, env=dict(spec.env)))
        self._client.ask(order, busy_s=_BUSY_S)
        self._client.hold(self._id)

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        output: int = DEFAULT_OUTPUT,
        workdir: str | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        user: str | None = None,
        stdin: bytes = b"",
        shell: str | None = None,
    ) -> CommandResult:
        """Run a command and wait until it ends. Raises: as `Machine.run`."""
        check_command(command, timeout_s=timeout_s, output=output, stdin=stdin, shell=shell)
        check_directory(workdir, where="command")
        check_env(env, where="command")
        fields = self._ask(
            wire.Run,
            within_s=timeout_s + _GRACE_S,
            command=command if isinstance(command, str) else [*command],
            timeout_s=timeout_s,
            output=output,
            workdir=workdir,
            env=dict(env),
            user=user,
            stdin=stdin,
            shell=shell,
        )
        try:
            return wire.read_result(fields)
        except ValueError as error:
            raise self._client.stranger(str(error)) from None

    def put(
        self,
        files: Mapping[str, bytes],
        directory: str,
        *,
        mode: int = 0o644,
        owner: str = ROOT,
        is_fresh: bool = False,
    ) -> None:
        """Write files below a directory. Raises: as `Machine.put`."""
        self._put({path: (content, mode) for path, content in files.items()}, directory, owner, is_fresh)

    def put_folder(self, path: Path, directory: str, *, owner: str = ROOT, is_fresh: bool = False) -> None:
        """Write a folder's files below a directory. Raises: as `Machine.put_folder`."""
        self._put(read_folder(path), directory, owner, is_fresh)

    def _put(self, files: dict[str, tuple[bytes, int]], directory: str, owner: str, is_fresh: bool) -> None:
        check_directory(directory, where="put")
        check_files(files, directory, is_fresh=is_fresh)
        self._ask(wire.Put, files=files, directory=directory, owner=owner, is_fresh=is_fresh)

    def get(self, path: str, *, max_bytes: int = MAX_GET) -> dict[str, bytes]:
        """Return the regular files at an absolute path. Raises: as `Machine.get`."""
        check_directory(path, where="get")
        fields = self._ask(wire.Get, path=path, max_bytes=max_bytes)
        try:
            return wire.FILES.validate_python(fields["files"])
        except (ValueError, LookupError) as error:
            raise self._client.stranger(str(error)) from None

    def end_processes(self) -> None:
        """Kill every process of the machine. Raises: ToolInfraFailure."""
        self._ask(wire.EndProcesses)

    def fork(self) -> Machine:
        """Start another machine with the same files. Raises: as `Machine.fork`."""
        copy = RemoteMachine(self._client, secrets.token_hex(16))
        self._ask(wire.Fork, busy_s=_BUSY_S, to=copy._id)
        self._client.hold(copy._id)
        return copy

    def close(self) -> None:
        """Remove the machine; a server that cannot be reached removes it when its lease ends."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._client.release(self._id)
            try:
                self._client.ask(wire.Close(machine=self._id, number=self._number + 1), reconnect_s=0.0)
            except (InfrastructureError, InvalidInput) as error:
                log_error(error, "a remote machine could not be removed; its lease ends")

    def _ask(
        self, kind: type[wire.OfMachine], *, within_s: float = _CALL_S, busy_s: float = 0.0, **fields: object
    ) -> Fields:
        with self._lock:
            if self._is_closed:
                do = "start another one"
                raise ToolInfraFailure.of("machine", "run", "one that is closed", where=self._client.url, do=do)
            self._number += 1
            order = kind.model_validate({"machine": self._id, "number": self._number, **fields})
            return self._client.ask(order, within_s=within_s, busy_s=busy_s)


class _Client:
    """One server; used by many threads."""

    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            port = None
        if port is None or not parts.hostname or parts.scheme != "http":
            do = f"write it as in http://127.0.0.1:{wire.DEFAULT_PORT}"
            raise InvalidInput.of("machine server", "have an address with a port", url, where="remote", do=do)
        self.url, self._place = url, (parts.hostname, port)
        self._headers = request_headers(parts.netloc, token)
        self._idle: list[BlockingConnection] = []
        self._held: dict[str, None] = {}
        self._lock = threading.Lock()
        self._renewal: threading.Event | None = None
        """Set when the thread that renews leases shall end; None: there is none."""
        self._pid = os.getpid()

    def ask(
        self,
        order: wire.Request,
        *,
        within_s: float = _CALL_S,
        reconnect_s: float | None = None,
        busy_s: float = 0.0,
    ) -> Fields:
        """Send a request, again if it got no reply, and return the reply. Raises: whatever error the reply holds."""
        content = order.model_dump_json().encode()
        if len(content) > wire.MAX_BODY_BYTES:
            must, do = f"have at most {wire.MAX_BODY_BYTES} bytes", "send less at once"
            raise InvalidInput.of("request", must, len(content), where=self.url, do=do)
        request = encode_request("POST", wire.path_of(order), self._headers, content)
        deadline, attempt = time.monotonic() + busy_s, 0
        while True:
            answer = self._exchange(request, within_s, _RECONNECT_S if reconnect_s is None else reconnect_s)
            pause_s = _BACKOFF.pause_s(attempt)
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() + pause_s > deadline:
                return self._read(answer)
            time.sleep(pause_s)
            attempt += 1

    def _read(self, answer: HttpAnswer) -> Fields:
        try:
            fields: Fields = wire.decode(answer.body)
        except ValueError as error:
            raise self.stranger(f"status {answer.status}: {error}") from None
        if answer.status == HTTPStatus.OK:
            return fields
        raise wire.read_error(fields) or self.stranger(f"status {answer.status}")

    def stranger(self, got: str) -> ToolInfraFailure:
        """Return the failure of a server that does not speak the protocol."""
        do = "correct the address, or start `envgym serve --protocol sandbox` there"
        return ToolInfraFailure.of("machine server", "speak the protocol", got, where=self.url, do=do)

    def _exchange(self, request: bytes, within_s: float, reconnect_s: float) -> HttpAnswer:
        deadline, attempt = time.monotonic() + reconnect_s, 0
        while True:
            connection = self._take()
            is_reused = connection is not None
            try:
                connection = connection or BlockingConnection(
                    *self._place, connect_s=_CONNECT_S, body_bytes=wire.MAX_BODY_BYTES
                )
                answer = connection.exchange(request, within_s)
            except OSError as error:
                if connection is not None:
                    connection.close()
                is_late = connection is not None and isinstance(error, TimeoutError)
                if is_reused and not is_late:
                    continue  # the server had closed it while nobody used it
                pause_s = _BACKOFF.pause_s(attempt)
                if is_late or time.monotonic() + pause_s > deadline:
                    got, do = str(error) or type(error).__name__, "look at its log, or start it again"
                    raise ToolInfraFailure.of("machine server", "answer", got, where=self.url, do=do) from None
                time.sleep(pause_s)
                attempt += 1
                continue
            self._give_back(connection)
            return answer

    def _take(self) -> BlockingConnection | None:
        with self._lock:
            if self._pid != os.getpid():  # connections and machines are those of the parent process
                self._idle, self._held, self._renewal, self._pid = [], {}, None, os.getpid()
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            if connection.is_used and self._held:
                self._idle.append(connection)
                return
        connection.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # ---- leases

    def hold(self, id: str) -> None:
        """Renew the lease of a machine from now on."""
        with self._lock:
            self._held[id] = None
            if self._renewal is None:
                self._renewal = threading.Event()
                threading.Thread(target=self._renew, args=(self._renewal,), name="machine-leases", daemon=True).start()

    def release(self, id: str) -> None:
        """Let a lease end; without any machine no thread and no connection is kept."""
        with self._lock:
            self._held.pop(id, None)
            if not self._held and self._renewal is not None:
                self._renewal.set()
                self._renewal = None
        if not self._held:
            self.close_idle()

    def _renew(self, is_over: threading.Event) -> None:
        pause_s = 0.0
        while not is_over.wait(pause_s):
            with self._lock:
                ids = list(self._held)
            try:
                pause_s = pause_s or float(self.ask(wire.Describe())["lease_s"]) / _RENEWALS
                self.ask(wire.Renew(machines=ids), within_s=_CONNECT_S, reconnect_s=0.0)
            except (InfrastructureError, InvalidInput, LookupError, TypeError, ValueError) as error:
                log_error(error, "the leases of remote machines could not be renewed")
                pause_s = pause_s or 1.0
