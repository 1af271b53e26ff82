"""The demo with vLLM and with transformers: is held-out success the same? Declared in docs/results/engines.md.

Run: python benchmarks/engine_equivalence.py run      both engines, every seed; goes on where it stopped
     python benchmarks/engine_equivalence.py report   one JSON line: success by run, the difference, its interval
The interpreter must have vLLM (`.venv-vllm/bin/python` after `python scripts/test_lanes.py vllm`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from scipy.stats import ttest_ind  # type: ignore[import-untyped]  # shipped without types

from envgym.runs import RunDirectory

ROOT: Final = Path(__file__).resolve().parent.parent
ENGINES: Final = ("transformers", "vllm")
SEEDS: Final = (10, 11, 12)
STEPS: Final = 70
"""Of examples/demo.yaml."""
MARGIN: Final = 0.07
"""The engines count as equivalent where the whole 90 % interval of the difference lies within this."""


def run(out: Path) -> None:
    """Train every engine and seed, one after the other; a run that was stopped is resumed."""
    for seed in SEEDS:
        for engine in ENGINES:
            if success(out, engine, seed) is None:
                train(out, engine, seed)


def train(out: Path, engine: str, seed: int) -> None:
    """Train in a process of its own. Raises: CalledProcessError: it failed; its output says why."""
    directory = out / f"{engine}-{seed}"
    if directory.exists():
        command = ["train", str(directory.resolve()), "--resume"]
    else:
        sets = {
            "policy.backend": engine,
            "run.seed": seed,
            "model.tiny.seed": seed,
            "run.directory": directory.resolve(),
        }
        command = ["train", "examples/demo.yaml"]
        command += [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    subprocess.run([sys.executable, "-m", "envgym", *command], cwd=ROOT, check=True)


def success(out: Path, engine: str, seed: int) -> float | None:
    """Return the share of held-out tasks that a run solves after training; None: it is not over."""
    directory = out / f"{engine}-{seed}"
    if not directory.exists():
        return None
    for record in RunDirectory.open(directory).evals():
        if record["step"] == STEPS:
            return float(mean(mean(rewards) for rewards in record["rewards"].values()))
    return None


def difference(vllm: Sequence[float], transformers: Sequence[float]) -> tuple[float, float, float]:
    """Return vLLM's mean minus transformers', with its 90 % interval by Welch's t over runs."""
    interval = ttest_ind(vllm, transformers, equal_var=False).confidence_interval(0.9)
    return mean(vllm) - mean(transformers), float(interval.low), float(interval.high)


def report(out: Path) -> dict[str, object]:
    """Return what the finished runs say."""
    found = {engine: {seed: success(out, engine, seed) for seed in SEEDS} for engine in ENGINES}
    values = {engine: [value for value in runs.values() if value is not None] for engine, runs in found.items()}
    line: dict[str, object] = {"benchmark": "engine_equivalence", "success": found}
    if all(len(runs) == len(SEEDS) for runs in values.values()):
        middle, low, high = difference(values["vllm"], values["transformers"])
        line |= {"difference": middle, "interval_90": [low, high], "is_equivalent": max(-low, high) < MARGIN}
    return line


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "engine_equivalence", help="default: %(default)s")
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.out)
    print(json.dumps(report(asked.out)))


if __name__ == "__main__":
    main()
