"""The Docker engine for machines: their containers, the volume that their guest runs from, and copies of their files.

Everything of a process carries its label; the next process that uses the engine removes what a dead one has left.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from envgym.errors import ForkUnsupported, InvalidInput, ToolInfraFailure
from envgym.sandbox._docker_engine import (
    BOOT,
    LABEL,
    START_S,
    ContainerEnd,
    WaitingContainer,
    answering,
    attach,
    connect,
    is_dead,
    owner,
)
from envgym.sandbox.machines._runtime_maker import TARGET
from envgym.sandbox.machines.records import MachineSpec
from envgym.sandbox.records import MIB

if TYPE_CHECKING:
    from docker import APIClient

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""What root may do in a machine: change files and users there, and end processes."""
OWN_MEMORY = 32 * MIB
"""What the guest and the kernel may need."""
_SYSCTLS = {"kernel.shm_rmid_forced": "1", "kernel.msgmni": "32", "kernel.sem": "250 32000 32 128"}
"""Shared memory ends with the processes that use it, and queues and semaphores that do not are few."""
_SHARED_FILES = f"rw,nosuid,nodev,noexec,mode=1777,size={64 * MIB},nr_inodes=4096"
_OWN_PROCESSES = 2
_ENGINE_S = 300
"""Seconds that one request to the engine may take, such as a copy of many files."""
_MODULES = (
    "envgym.sandbox._namespaces",
    "envgym.sandbox._seccomp",
    "envgym.sandbox.machines._guest_frames",
    "envgym.sandbox.machines._guest_processes",
    "envgym.sandbox.machines._guest_files",
    "envgym.sandbox.machines._guest_shell",
    "envgym.sandbox.machines._guest",
)
_START = "import sys; sys.path.insert(0, '/.envgym/guest'); from envgym.sandbox.machines._guest import main; main()"
_LOADER = (f"{TARGET}/lib/ld.so", "--inhibit-cache", "--library-path", f"{TARGET}/lib")
_COMMAND = (*_LOADER, f"{TARGET}/bin/python3", "-I", "-S", "-X", "utf8", "-c", _START)


class ImageConfig(NamedTuple):
    """What an image says about the commands in it."""

    env: Mapping[str, str]
    user: str
    workdir: str
    has_volumes: bool


class MachineEngine:
    """Talks to the engine that DOCKER_HOST names; used by many threads."""

    def __init__(self) -> None:
        """Connect, and remove what dead processes have left. Raises: ToolInfraFailure: no SDK, no engine."""
        self._api: APIClient = connect()
        self._api.timeout = _ENGINE_S
        with answering():
            self._num_cpus = int(self._api.info()["NCPU"])
        self.remove_all(of_the_dead=True)

    def image_config(self, image: str) -> ImageConfig:
        """Return an image's configuration. Raises: InvalidInput: there is no such image. ToolInfraFailure."""
        from docker.errors import ImageNotFound

        with answering():
            try:
                config: dict[str, Any] = self._api.inspect_image(image)["Config"] or {}
            except ImageNotFound:
                do = "build it, or name another one"
                raise InvalidInput.of("docker image", "be on this machine", image, where="machines", do=do) from None
        env = dict(line.partition("=")[::2] for line in config.get("Env") or ())
        workdir, user = config.get("WorkingDir") or "/", config.get("User") or "0"
        return ImageConfig(env, user, workdir, bool(config.get("Volumes")))

    def fill_volume(self, image: str) -> str:
        """Return a new volume with what the guest needs, from an image with Python. Raises: ToolInfraFailure."""
        do = "build it with docker build -t envgym-sandbox docker/sandbox"
        try:
            self.image_config(image)
        except InvalidInput:
            raise ToolInfraFailure.of("docker image", "be on this machine", image, where="machines", do=do) from None
        with answering():
            volume = str(self._api.create_volume(labels={LABEL: owner()})["Name"])
        try:
            reply = self._run_maker(image, volume)
        except BaseException:
            self.remove_volume(volume)
            raise
        if reply != b"filled\n":
            self.remove_volume(volume)
            got, do = reply.decode(errors="replace")[-200:], "use an image with python3 and the GNU C library"
            raise ToolInfraFailure.of("docker image", "supply the guest of machines", got, where=image, do=do)
        return volume

    def _run_maker(self, image: str, volume: str) -> bytes:
        host = {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": [_mount(volume, is_read_only=False)],
            "LogConfig": {"Type": "none"},
        }
        command = ["python3", "-I", "-S", "-c", BOOT]
        container = self._start({"Image": image, "User": "0:0", "Entrypoint": command, "HostConfig": host})
        try:
            output = bytearray()
            with answering():
                container.send(_maker())
                while (answer := container.receive(START_S)) is not None:
                    output += answer[1]
            return bytes(output)
        finally:
            container.close()
            self.remove(container.id)

    def start(self, spec: MachineSpec, image_env: Iterable[str], volume: str) -> WaitingContainer:
        """Start a container whose first process is the guest. Raises: ToolInfraFailure."""
        loading = [
            f"{name}=" for name in image_env if name.startswith(("LD_", "GLIBC_"))
        ]  # of the image; not for the guest
        host = {
            "NetworkMode": "bridge" if spec.network else "none",
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": [_mount(volume, is_read_only=True)],
            "NanoCpus": int(min(spec.cpus, self._num_cpus) * 1e9),
            "Memory": spec.memory + OWN_MEMORY,
            "MemorySwap": spec.memory + OWN_MEMORY,
            "PidsLimit": spec.processes + _OWN_PROCESSES,
            "IpcMode": "private",
            "Sysctls": _SYSCTLS,
            "Tmpfs": {"/dev/shm": _SHARED_FILES},
            "Init": False,  # the guest is process 1: no program's signal reaches that
            "LogConfig": {"Type": "none"},
        }
        config = {
            "Image": spec.image,
            "Entrypoint": list(_COMMAND),
            "User": "0:0",
            "WorkingDir": spec.workdir,
            "Hostname": "machine",
            "Env": [*loading, "LC_ALL=C"],
            "NetworkDisabled": not spec.network,
            "HostConfig": host,
        }
        return self._start(config)

    def _start(self, config: Mapping[str, object]) -> WaitingContainer:
        streams = dict.fromkeys(("OpenStdin", "StdinOnce", "AttachStdin", "AttachStdout", "AttachStderr"), True)
        common = {"Cmd": [], "Labels": {LABEL: owner()}, "Healthcheck": {"Test": ["NONE"]}, **streams}
        with answering():
            id = str(self._api.create_container_from_config({**common, **config})["Id"])
        try:
            with answering(), ExitStack() as undoing:
                container = attach(self._api, id)
                undoing.callback(container.close)
                self._api.start(id)
                undoing.pop_all()
                return container
        except BaseException:
            self.remove(id)
            raise

    def written_bytes(self, id: str) -> int:
        """Return the bytes that a container has written in addition to its image. Raises: ToolInfraFailure."""
        with answering():
            url = self._api._url("/containers/{0}/json", id)  # the SDK's own method has no parameter for sizes
            container: dict[str, Any] = self._api._result(self._api._get(url, params={"size": 1}), json=True)
        return int(container.get("SizeRw") or 0)

    def kill(self, id: str) -> None:
        """Kill a container, if it still runs. Raises: ToolInfraFailure."""
        from docker.errors import APIError

        with answering(), suppress(APIError):
            self._api.kill(id)

    def ended(self, id: str) -> ContainerEnd | None:
        """Wait until a container has ended; None: it is gone. Raises: ToolInfraFailure."""
        from docker.errors import NotFound

        with answering(), suppress(NotFound):
            self._api.wait(id, timeout=START_S)
            state = self._api.inspect_container(id)["State"]
            return ContainerEnd(exit_code=state["ExitCode"], was_out_of_memory=state["OOMKilled"])
        return None

    def commit(self, id: str) -> str:
        """Return an image with the files of a container, labelled as this process'. Raises: ForkUnsupported."""
        try:
            with answering():
                return str(self._api.commit(id, conf={"Labels": {LABEL: owner()}})["Id"])
        except ToolInfraFailure as failure:
            if "max depth" in str(failure):
                must, do = "have fewer copies of copies", "start a new machine"
                raise ForkUnsupported.of("machine", must, "as many as the engine allows", where="fork", do=do) from None
            raise

    # ---- removing

    def remove(self, id: str) -> None:
        """Remove a container and its anonymous volumes, if it is there. Raises: ToolInfraFailure."""
        from docker.errors import APIError

        with answering(), suppress(APIError):
            self._api.remove_container(id, v=True, force=True)

    def remove_image(self, id: str) -> bool:
        """Remove a copy, and nothing below it; return whether it is gone: copies of it are in its way."""
        from docker.errors import APIError, NotFound

        with answering():
            try:
                self._api.remove_image(id, noprune=True)
            except NotFound:
                return True
            except APIError:
                return False
        return True

    def remove_volume(self, name: str) -> None:
        """Remove a volume, if it is there. Raises: ToolInfraFailure."""
        from docker.errors import APIError

        with answering(), suppress(APIError):
            self._api.remove_volume(name)

    def remove_all(self, *, of_the_dead: bool = False) -> None:
        """Remove everything of this process, or of dead processes of this machine. Raises: ToolInfraFailure."""
        matches = is_dead if of_the_dead else owner().__eq__
        filters = {"label": [LABEL]}
        with answering():
            containers = self._api.containers(all=True, filters=filters)
            images = self._api.images(all=True, filters=filters)
            volumes = self._api.volumes(filters=filters)["Volumes"] or []
        for item in containers:
            if matches(str(item["Labels"][LABEL])):
                self.remove(item["Id"])
        for item in sorted(images, key=lambda item: -int(item["Created"])):  # copies of copies first
            if matches(str(item["Labels"][LABEL])):
                self.remove_image(item["Id"])
        for item in volumes:
            if matches(str(item["Labels"][LABEL])):
                self.remove_volume(item["Name"])

    def close(self) -> None:
        self._api.close()


def _mount(volume: str, *, is_read_only: bool) -> Mapping[str, object]:
    common = {"Type": "volume", "Source": volume, "Target": str(TARGET), "VolumeOptions": {"NoCopy": True}}
    return {**common, "ReadOnly": is_read_only}


@cache
def _maker() -> bytes:
    """Return the program that fills a volume, with its size in front."""
    root = Path(__file__).parents[3]
    sources = {name: root.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8") for name in _MODULES}
    maker = root.joinpath("envgym", "sandbox", "machines", "_runtime_maker.py").read_text("utf-8")
    code = f"{maker}\nSOURCES = {sources!r}\nmain()\n".encode()
    return b"%d\n" % len(code) + code
