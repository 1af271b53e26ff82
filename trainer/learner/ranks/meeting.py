"""Where the processes meet that learn together."""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from envgym.errors import SettingsError

FOLDER: Final = "envgym-ranks-"
"""How the name of a folder begins that is made for a meeting."""
_FILE: Final = "file://"
_ADDRESS: Final = "tcp://"


def is_torchrun() -> bool:
    """Return whether torchrun has started this process, and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1"


class Meeting(NamedTuple):
    """Where ranks find each other."""

    rank: int
    size: int
    init_method: str
    """As `torch.distributed` reads it: `env://` where torchrun has set the variables, else a file of this machine, or
    the address at which rank 0 listens."""
    local_rank: int
    """Number of the rank on its machine."""

    @classmethod
    def of_torchrun(cls) -> "Meeting":
        """Return the meeting that the variables of torchrun describe. Raises: SettingsError: one is missing."""
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        do = "start it with torchrun"
        SettingsError.unless(not missing, "ranks", "know each other", f"no {missing}", where="environment", do=do)
        rank = int(os.environ["RANK"])
        return cls(rank, int(os.environ["WORLD_SIZE"]), "env://", int(os.environ.get("LOCAL_RANK", rank)))

    @classmethod
    def at_file(cls, rank: int, size: int, file: str) -> "Meeting":
        """Return a meeting of ranks of this machine at a file that does not exist yet."""
        return cls(rank, size, f"{_FILE}{file}", rank)

    @classmethod
    def at_address(cls, rank: int, size: int, address: str) -> "Meeting":
        """Return a meeting of ranks of several machines, each with GPUs of its own; rank 0 listens at HOST:PORT."""
        return cls(rank, size, f"{_ADDRESS}{address}", 0)

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.file is not None or (
            self.address is None and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        )

    def leave(self) -> None:
        """Remove the file, and the folder that was made for it, where they are there."""
        if self.file is not None:
            Path(self.file).unlink(missing_ok=True)
            if Path(self.file).parent.name.startswith(FOLDER):
                with suppress(OSError):
                    Path(self.file).parent.rmdir()

    @property
    def file(self) -> str | None:
        """The file of such a meeting; None: there is none."""
        return self.init_method.removeprefix(_FILE) if self.init_method.startswith(_FILE) else None

    @property
    def address(self) -> str | None:
        """Where rank 0 listens, as HOST:PORT; None: at a file, or torchrun's variables say where."""
        return self.init_method.removeprefix(_ADDRESS) if self.init_method.startswith(_ADDRESS) else None


_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR of ioctl(2)
"""Asks Linux for the address of an interface."""


def free_address(host: str) -> str:
    """Return HOST:PORT of this machine with a port on which nothing listens now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.bind((host, 0))
        return f"{host}:{listening.getsockname()[1]}"


def interface_to(address: str | None) -> str | None:
    """Return the network interface of this machine by which HOST:PORT is reached; None: it is not found."""
    if address is None or not hasattr(socket, "if_nameindex"):
        return None
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, int(port)))  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == own:
                    return name
    return None
