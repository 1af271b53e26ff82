"""Where the processes meet that learn together."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from envgym.errors import SettingsError

FOLDER: Final = "envgym-ranks-"
"""How the name of a folder begins that is made for a meeting."""
_FILE: Final = "file://"


def is_torchrun() -> bool:
    """Return whether torchrun has started this process, and others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1"


class Meeting(NamedTuple):
    """Where ranks find each other."""

    rank: int
    size: int
    init_method: str
    """As `torch.distributed` reads it: `env://` where torchrun has set the variables, else a file of this machine."""
    local_rank: int
    """Number of the rank on its machine."""

    @classmethod
    def of_torchrun(cls) -> "Meeting":
        """Return what the variables of torchrun say. Raises: SettingsError: one is missing."""
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        do = "start it with torchrun"
        SettingsError.unless(not missing, "ranks", "know each other", f"no {missing}", where="environment", do=do)
        rank = int(os.environ["RANK"])
        return cls(rank, int(os.environ["WORLD_SIZE"]), "env://", int(os.environ.get("LOCAL_RANK", rank)))

    @classmethod
    def at_file(cls, rank: int, size: int, file: str) -> "Meeting":
        """Return a meeting of ranks of this machine at a file that does not exist yet."""
        return cls(rank, size, f"{_FILE}{file}", rank)

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.file is not None or os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]

    def leave(self) -> None:
        """Remove the file, and the folder that was made for it, where they are there."""
        if self.file is not None:
            Path(self.file).unlink(missing_ok=True)
            if Path(self.file).parent.name.startswith(FOLDER):
                with suppress(OSError):
                    Path(self.file).parent.rmdir()

    @property
    def file(self) -> str | None:
        """The file of such a meeting; None: torchrun's variables say where."""
        return self.init_method.removeprefix(_FILE) if self.init_method.startswith(_FILE) else None
