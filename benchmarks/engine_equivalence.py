"""The demo with vLLM and with transformers: is held-out success the same? Declared in docs/results/engines.md.

Run: python benchmarks/engine_equivalence.py run      both engines, every seed; continues an interrupted study
     python benchmarks/engine_equivalence.py report   one JSON line: success by run, the difference, its interval
The interpreter must have vLLM (`.venv-vllm/bin/python` after `python scripts/test_lanes.py vllm`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from scipy.stats import ttest_ind  # type: ignore[import-untyped]  # shipped without types

from benchmarks._studies import ROOT, evaluated_after, success, train

ENGINES: Final = ("transformers", "vllm")
SEEDS: Final = (10, 11, 12)
STEPS: Final = 70
WARM_START: Final = 9000
"""Oracle episodes. With `STEPS` what examples/demo.yaml had when the study was declared."""
MARGIN: Final = 0.07
"""The engines count as equivalent where the whole 90 % interval of the difference lies within this."""


def run(out: Path) -> None:
    """Train every engine and seed, one after the other."""
    for seed in SEEDS:
        for engine in ENGINES:
            sets = {
                "engine.backend": engine,
                "run.seed": seed,
                "run.steps": STEPS,
                "model.tiny.seed": seed,
                "sft.episodes": WARM_START,
            }
            train("examples/demo.yaml", _directory(out, engine, seed), sets, is_whole=evaluated_after(STEPS))


def difference(vllm: Sequence[float], transformers: Sequence[float]) -> tuple[float, float, float]:
    """Return vLLM's mean minus transformers', with its 90 % interval by Welch's t over runs."""
    interval = ttest_ind(vllm, transformers, equal_var=False).confidence_interval(0.9)
    return fmean(vllm) - fmean(transformers), float(interval.low), float(interval.high)


def report(out: Path) -> dict[str, object]:
    """Return the summary of the finished runs."""
    successes = {engine: {seed: success(_directory(out, engine, seed), STEPS) for seed in SEEDS} for engine in ENGINES}
    values = {engine: [value for value in runs.values() if value is not None] for engine, runs in successes.items()}
    line: dict[str, object] = {"benchmark": "engine_equivalence", "success": successes}
    if all(len(runs) == len(SEEDS) for runs in values.values()):
        middle, low, high = difference(values["vllm"], values["transformers"])
        line |= {"difference": middle, "interval_90": [low, high], "is_equivalent": max(-low, high) < MARGIN}
    return line


def _directory(out: Path, engine: str, seed: int) -> Path:
    return out / f"{engine}-{seed}"


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "engine_equivalence", help="default: %(default)s")
    options = parser.parse_args()
    if options.what == "run":
        run(options.out)
    print(json.dumps(report(options.out)))


if __name__ == "__main__":
    main()
