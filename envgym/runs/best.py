"""The best checkpoint of a training run, as `best.json` of its directory names it.

The file is written by a run with `run.keep_best`. The checkpoint itself lies among the others, and is not deleted with
them.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from envgym.errors import RunError
from envgym.runs.directory import read_object, reading
from envgym.runs.files import write_json

BEST: Final = "best.json"
"""Name of the file in a run directory."""
MODES: Final = ("max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The checkpoint whose evaluation had the best value so far."""

    step: int
    """Train steps that made it."""
    metric: str
    """Metric of an evaluation, such as `success`."""
    mode: str
    """`max`: larger values are better; `min`: smaller ones."""
    value: float
    """Of the metric, the mean over the environments of the run."""

    def is_beaten_by(self, value: float) -> bool:
        """Return whether a value is strictly better; one that is not finite never is."""
        return math.isfinite(value) and (value > self.value if self.mode == "max" else value < self.value)

    @property
    def words(self) -> str:
        """The checkpoint in words, such as `step 24, success 0.612`."""
        return f"step {self.step}, {self.metric} {self.value:.4g}"


def write_best(run: Path, best: BestCheckpoint) -> None:
    """Name the best checkpoint of a run, in place of the one before."""
    write_json(run / BEST, asdict(best))


def read_best(run: Path) -> BestCheckpoint | None:
    """Return the best checkpoint of a run; None where it names none.

    Raises: RunError: the file cannot be read as what `write_best` wrote.
    """
    path = run / BEST
    if not path.exists():
        return None
    data = read_object(path)
    with reading(str(path)):
        best = BestCheckpoint(
            step=int(data["step"]), metric=str(data["metric"]), mode=str(data["mode"]), value=float(data["value"])
        )
    RunError.unless(best.mode in MODES, "mode", "be max or min", best.mode, where=str(path), do="restore the file")
    return best
