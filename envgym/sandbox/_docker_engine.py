"""The Docker engine: containers that wait for a program, and what is left of those whose process has died.

Everything else in this package asks the engine through here; whatever goes wrong with it is a `ToolInfraFailure`.
"""

import json
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from envgym.errors import ToolInfraFailure
from envgym.sandbox._docker_guest import READY, WORK
from envgym.sandbox.records import MIB

if TYPE_CHECKING:
    from docker import APIClient

LABEL = "envgym.sandbox"
"""Label of every container of ours; its value says whose it is."""
USER = "1000"
START_S = 60.0
"""Seconds that a container may take until it waits for its program."""
_OWN_MEMORY = 32 * MIB
"""What the first process of a container and the kernel may need."""
_MODULES = ("_tree", "_seccomp", "_namespaces", "_docker_guest")
BOOT = "import sys; b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
"""What a container runs that gets its program on standard input: its size in a line, then its text."""
_CHUNK = 65536


class ContainerLimits(NamedTuple):
    """The limits that a container is made with; the others come with a program."""

    memory: int
    disk: int
    processes: int


class WaitingContainer:
    """A container whose first process waits for its program, and the connection to it."""

    def __init__(self, id: str, connection: socket.socket, close: Callable[[], None]) -> None:
        self.id = id
        self._connection = connection
        self._close = close
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Write to its standard input. Raises: OSError."""
        self._connection.settimeout(START_S)
        self._connection.sendall(data)

    def receive(self, seconds: float) -> tuple[int, bytes] | None:
        """Return the next (stream, bytes) that it says, None at its end. Raises: OSError, a TimeoutError among them."""
        while len(self._buffer) < 8 + (size := self._size()):
            self._connection.settimeout(max(0.001, seconds))
            chunk = self._connection.recv(_CHUNK)
            if not chunk:
                return None
            self._buffer += chunk
        stream, data = self._buffer[0], bytes(self._buffer[8 : 8 + size])
        del self._buffer[: 8 + size]
        return stream, data

    def _size(self) -> int:
        """Return the size of the frame at the front: 4 bytes that name its stream, 4 that count."""
        return int(struct.unpack(">I", self._buffer[4:8])[0]) if len(self._buffer) >= 8 else 0

    def is_waiting(self) -> bool:
        """Tell whether it still waits: one that says something, or hangs up, has ended."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return not self._buffer and not poll.poll(0)

    def close(self) -> None:
        """Hang up, at which the container ends."""
        self._close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """How a container ended that did not report."""

    exit_code: int
    was_out_of_memory: bool


class DockerEngine:
    """Talks to the engine that DOCKER_HOST names; used by many threads."""

    def __init__(self) -> None:
        """Connect, and remove what dead processes have left. Raises: ToolInfraFailure: no SDK, no engine."""
        self._api = connect()
        self.remove_all(of_the_dead=True)

    def start(self, image: str, shape: ContainerLimits) -> WaitingContainer:
        """Start a container that waits for a program. Raises: ToolInfraFailure."""
        from docker.errors import ImageNotFound

        with answering():
            try:
                id = str(self._api.create_container_from_config(_config(image, shape))["Id"])
            except ImageNotFound:
                do = "build it with docker build -t envgym-sandbox docker/sandbox, or name another one that has python3"
                raise ToolInfraFailure.of("docker image", "be on this machine", image, where="sandbox", do=do) from None
        try:
            with answering(), ExitStack() as undoing:
                waiting = attach(self._api, id)
                undoing.callback(waiting.close)
                self._api.start(id)
                _boot(waiting)
                undoing.pop_all()
                return waiting
        except BaseException:
            self.remove(id)
            raise

    def kill(self, id: str) -> None:
        """Kill a container, if it still runs. Raises: ToolInfraFailure."""
        from docker.errors import APIError

        with answering(), suppress(APIError):
            self._api.kill(id)

    def ended(self, id: str) -> ContainerEnd:
        """Return how a container ended. Raises: ToolInfraFailure: it is gone."""
        with answering():
            self._api.wait(id, timeout=START_S)
            state = self._api.inspect_container(id)["State"]
            return ContainerEnd(exit_code=int(state["ExitCode"]), was_out_of_memory=bool(state["OOMKilled"]))

    def remove(self, id: str) -> None:
        """Remove a container, whether it runs or not; one that is gone, or an engine that is, does not matter."""
        from docker.errors import APIError

        with suppress(ToolInfraFailure), answering(), suppress(APIError):
            self._api.remove_container(id, v=True, force=True)

    def ids(self, *, of_the_dead: bool = False) -> list[str]:
        """Return this process' containers, or those of dead processes of this machine. Raises: ToolInfraFailure."""
        with answering():
            listed = self._api.containers(all=True, filters={"label": [LABEL]})
        owners = {str(item["Id"]): str(item["Labels"][LABEL]) for item in listed}
        matches = is_dead if of_the_dead else owner().__eq__
        return [id for id, whose in owners.items() if matches(whose)]

    def remove_all(self, *, of_the_dead: bool = False) -> None:
        """Remove this process' containers, or those of dead processes. Raises: ToolInfraFailure."""
        for id in self.ids(of_the_dead=of_the_dead):
            self.remove(id)

    def close(self) -> None:
        self._api.close()


def connect() -> "APIClient":
    """Connect to the engine that DOCKER_HOST names. Raises: ToolInfraFailure: no SDK, no engine."""
    try:
        from docker import from_env  # a folder of that name is no SDK
    except ImportError as error:
        got, do = "no such package" if error.name == "docker" else str(error), "run pip install 'envgym[docker]'"
        raise ToolInfraFailure.of("docker's SDK", "be installed", got, where="sandbox", do=do) from None
    with answering():
        _check_listening()
        api: APIClient = from_env().api
    return api


def attach(api: "APIClient", id: str) -> WaitingContainer:
    """Connect to the streams of a container that has not started yet."""
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    stream = api.attach_socket(id, params=params)
    connection: socket.socket = getattr(stream, "_sock", stream)

    def close() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        if response := getattr(stream, "_response", None):
            response.close()
        stream.close()
        connection.close()

    return WaitingContainer(id, connection, close)


def _check_listening() -> None:
    """See that the engine's socket is there: the SDK would leave one open where it is not. Raises: OSError."""
    kind, _, path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as trial:
            trial.connect(path)


@contextmanager
def answering() -> Iterator[None]:
    """Turn what goes wrong with the engine into one sentence. Raises: ToolInfraFailure."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (DockerException, RequestException, HTTPError, OSError, EOFError) as error:
        reason = str(getattr(error, "explanation", "") or error).strip() or type(error).__name__
        is_refusal = isinstance(error, (APIError, EOFError))  # it runs, but not this container
        do = "check the image" if is_refusal else "start it (dockerd), or name another one in DOCKER_HOST"
        raise ToolInfraFailure.of("Docker engine", "carry out the request", reason, where="sandbox", do=do) from None


def _config(image: str, shape: ContainerLimits) -> Mapping[str, object]:
    """Return the container's configuration: no network, no rights, and no place to write except its own."""
    memory = shape.memory + shape.disk + _OWN_MEMORY  # files in memory count too
    options = f"rw,exec,nosuid,nodev,size={shape.disk},nr_inodes=60000,mode=0700,uid={USER},gid={USER}"
    return {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-S", "-c", BOOT],
        "Cmd": [],
        "User": f"{USER}:{USER}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": {LABEL: owner()},
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "Tmpfs": {WORK: options},
            "ShmSize": 65536,
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": shape.processes + 1,
            "IpcMode": "private",
            "Init": False,  # ours is process 1: no program's signal reaches that
            "LogConfig": {"Type": "none"},
        },
    }


def _boot(waiting: WaitingContainer) -> None:
    """Send the first process its program, and wait until it says that it runs. Raises: OSError, EOFError."""
    waiting.send(_program())
    output = bytearray()
    while len(output) < len(READY):
        answer = waiting.receive(START_S)
        if answer is None:
            raise EOFError(f"a container that exited immediately: {output.decode(errors='replace')[:200]}")
        output += answer[1]
    if output != READY:
        raise EOFError(f"a container with the output: {output.decode(errors='replace')[:200]}")


@cache
def _program() -> bytes:
    """Return the first process' program, with its size in front: modules of this package, which the image lacks."""
    here = Path(__file__).parent
    sources = {f"{__package__}.{name}": (here / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES}
    packages = ("envgym", "envgym.sandbox")
    code = (
        "import __future__, sys, types\n"
        f"for name in {packages!r}: sys.modules[name] = types.ModuleType(name)\n"
        f"for name, source in {sources!r}.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(source, name, 'exec', __future__.annotations.compiler_flag), module.__dict__)\n"
        "module.main(b)\n"
    ).encode()
    return b"%d\n" % len(code) + code


def owner() -> str:
    """Return who owns this process' containers: machine, process, and when that process started."""
    return json.dumps([socket.gethostname(), os.getpid(), _start_of(os.getpid())])


def is_dead(whose: str) -> bool:
    """Return whether an owner is a process of this machine that has ended."""
    try:
        host, pid, start = json.loads(whose)
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    try:
        with suppress(PermissionError):  # then it lives, and is another's
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return bool(start != _start_of(int(pid)))


def _start_of(pid: int) -> int:
    """Return when a process started, in ticks; 0 where the machine does not tell."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])
    return 0
