"""Training runs that a study is made of: each in a process of its own, and not made again where it is whole."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

from envgym.runs import RunDirectory

ROOT: Final = Path(__file__).resolve().parent.parent


def train(config: str, directory: Path, sets: Mapping[str, object], *, last: int) -> None:
    """Train in a process of its own, unless that run is whole; one that was stopped is resumed.

    Raises: CalledProcessError: it failed; its output says why.
    """
    if success(directory, last) is not None:
        return
    directory = directory.resolve()
    if directory.exists():
        words = [str(directory), "--resume"]
    else:
        every = {**sets, "run.directory": directory, "run.name": directory.name}
        words = [config, *(word for name, value in every.items() for word in ("--set", f"{name}={value}"))]
    subprocess.run([sys.executable, "-m", "envgym", "train", *words], cwd=ROOT, check=True)


def success(directory: Path, step: int) -> float | None:
    """Return the share of held-out tasks solved after `step` steps; None: that was not measured, or not yet."""
    if not directory.exists():
        return None
    for record in RunDirectory.open(directory).evals():
        if record["step"] == step:
            return fmean(fmean(rewards) for rewards in record["rewards"].values())
    return None
