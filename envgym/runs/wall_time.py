"""Wall time of a run: the processes that worked on it, each with its device and its seconds."""

import time
from pathlib import Path
from typing import NamedTuple

from envgym.runs.files import write_json
from envgym.runs.directory import read_json, reading

_FILE = "wall_time.json"


class ProcessTime(NamedTuple):
    """What one process spent on a run."""

    device: str
    """In words, such as '2 CPU cores'; empty where the model is elsewhere."""
    seconds: float
    """From the start of the process where a command of one run did the work, else from the call."""


class WallClock:
    """Records how long this process has worked on a run, beside the processes before it.

    A process that was killed counts up to its last step or evaluation.
    """

    def __init__(self, directory: Path, *, device: str, started: float) -> None:
        """Go on from what a run directory has; `started` is what `time.perf_counter()` was at the beginning."""
        self._directory, self._device, self._started = directory, device, started
        self._earlier = read_wall_time(directory)

    def record(self) -> None:
        """Write the time until now."""
        times = (*self._earlier, ProcessTime(self._device, time.perf_counter() - self._started))
        write_json(self._directory / _FILE, [item._asdict() for item in times])


def read_wall_time(directory: Path) -> tuple[ProcessTime, ...]:
    """Return the processes of a run; none where nothing was recorded. Raises: RunError: their file cannot be read."""
    path = directory / _FILE
    if not path.exists():
        return ()
    with reading(str(path)):
        return tuple(ProcessTime(str(item["device"]), float(item["seconds"])) for item in read_json(path))
