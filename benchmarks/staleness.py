"""Samples that are 0, 1 and 4 steps old, with and without correction: declared in docs/results/engines.md.

Run: python benchmarks/staleness.py run      the declared study; continues an interrupted one
     python benchmarks/staleness.py report   docs/results/staleness.svg, and one JSON line
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from benchmarks._curves import CurvePoint, plot
from benchmarks._studies import ROOT, Mean, evaluated_after, success, t_interval, train
from envgym.runs import RunDirectory

SEEDS: Final = (20, 21, 22)
STEPS: Final = 40
WARM_START: Final = 9000
"""Oracle episodes: what examples/demo.yaml had when the study was declared."""
MARKS: Final = (0, 10, 20, 30, 40)
"""Steps after which a policy is evaluated."""
CORRECTIONS: Final = {"none": "envgym.trainer.methods.corrections.base:NoCorrection", "tis": "tis"}
"""By import path, as a run refuses old samples without a correction that is meant otherwise."""
FIGURE: Final = ROOT / "docs" / "results" / "staleness.svg"
MISMATCH: Final = (
    "staleness/mean",
    "logprob_gap/mean_abs",
    "logprob_gap/kl",
    "logprob_gap/effective_samples",
    "logprob_gap/truncated",
)
"""Metrics that are reported as their mean over steps, where a run has them."""


class Arm(NamedTuple):
    """What is compared."""

    staleness: int
    correction: str

    @property
    def label(self) -> str:
        """As it is called."""
        return f"staleness {self.staleness}, {self.correction}"


FRESH: Final = Arm(0, "none")
ARMS: Final = (FRESH, Arm(1, "none"), Arm(1, "tis"), Arm(4, "none"), Arm(4, "tis"))
CONTRASTS: Final = (
    (Arm(1, "none"), FRESH),
    (Arm(4, "none"), FRESH),
    (Arm(1, "tis"), Arm(1, "none")),
    (Arm(4, "tis"), Arm(4, "none")),
    (Arm(4, "tis"), FRESH),
)
"""Declared; the second is subtracted from the first, seed by seed."""


def run(out: Path) -> None:
    """Make what is missing, one seed after the other."""
    config = "examples/demo.yaml"
    for seed in SEEDS:
        warm = out / f"warm-{seed}"
        seeds = {"run.seed": seed, "model.tiny.seed": seed}
        train(config, warm, {**seeds, "run.steps": 0, "sft.episodes": WARM_START}, is_whole=evaluated_after(0))
        own = {
            **seeds,
            "run.steps": STEPS,
            "run.save_episodes_every": 0,
            "sft": "null",
            "model.name": warm.resolve() / "checkpoints" / "step-000000" / "model",
            "evaluation.every": MARKS[1],
            "evaluation.tasks_during": 300,
        }
        for arm in ARMS:
            sets = {**own, "rollout.staleness": arm.staleness, "correction.name": CORRECTIONS[arm.correction]}
            train(config, _directory(out, arm, seed), sets, is_whole=evaluated_after(STEPS))


def report(out: Path) -> dict[str, object]:
    """Draw the curves of the finished seeds, and return their summary."""
    seeds = [seed for seed in SEEDS if all(success(_directory(out, arm, seed), STEPS) is not None for arm in ARMS)]
    if not seeds:
        return {"benchmark": "staleness", "seeds": []}
    curves = {arm: {seed: _curve(out, arm, seed) for seed in seeds} for arm in ARMS}
    panels = {
        name: {
            f"staleness {arm.staleness}": [
                CurvePoint(mark, _clipped(t_interval([curve[mark] for curve in curves[arm].values()])))
                for mark in MARKS
            ]
            for arm in ARMS
            if arm == FRESH or arm.correction == correction
        }
        for name, correction in (("without correction", "none"), ("truncated importance weights", "tis"))
    }
    FIGURE.write_text(plot(panels, axis="train steps"), encoding="utf-8")
    learning = {arm: {seed: _learning(out, arm, seed) for seed in seeds} for arm in ARMS}
    final = {arm: {seed: curve[STEPS] for seed, curve in runs.items()} for arm, runs in curves.items()}
    return {
        "benchmark": "staleness",
        "seeds": seeds,
        "held_out": {arm.label: _mean(final[arm]) for arm in ARMS},
        "while_learning": {arm.label: _mean(learning[arm]) for arm in ARMS},
        "held_out_differences": _differences(final),
        "while_learning_differences": _differences(learning),
        "mismatch": {arm.label: _mismatch(out, arm, seeds) for arm in ARMS},
    }


def _curve(out: Path, arm: Arm, seed: int) -> dict[int, float]:
    by_mark = {mark: success(_directory(out, arm, seed), mark) for mark in MARKS}
    return {mark: share for mark, share in by_mark.items() if share is not None}


def _learning(out: Path, arm: Arm, seed: int) -> float:
    """Return the mean success of the episodes that a run learned from."""
    rows = RunDirectory.open(_directory(out, arm, seed)).metrics()
    return fmean(row["train/success"] for row in rows if row["step"] > 0)


def _mean(runs: Mapping[int, float]) -> dict[str, object]:
    mean = t_interval(list(runs.values()))
    return {"mean": mean.value, "interval_95": [mean.low, mean.high], "runs": runs}


def _differences(runs: Mapping[Arm, Mapping[int, float]]) -> dict[str, object]:
    return {
        f"{one.label} minus {other.label}": _mean({seed: runs[one][seed] - runs[other][seed] for seed in runs[one]})
        for one, other in CONTRASTS
    }


def _mismatch(out: Path, arm: Arm, seeds: list[int]) -> dict[str, float]:
    rows = [row for seed in seeds for row in RunDirectory.open(_directory(out, arm, seed)).metrics()]
    return {name: fmean(row[name] for row in rows if name in row) for name in MISMATCH if any(name in r for r in rows)}


def _clipped(mean: Mean) -> Mean:
    """Cut an interval off where no share can be."""
    return Mean(mean.value, max(mean.low, 0.0), min(mean.high, 1.0) if math.isfinite(mean.high) else 1.0)


def _directory(out: Path, arm: Arm, seed: int) -> Path:
    return out / f"staleness-{arm.staleness}-{arm.correction}-{seed}"


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "report"], default="report")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "staleness", help="default: %(default)s")
    options = parser.parse_args()
    if options.what == "run":
        run(options.out)
    print(json.dumps(report(options.out)))


if __name__ == "__main__":
    main()
