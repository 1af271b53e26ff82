"""Two studies on the demo, declared in docs/results/engines.md.

Run: python -m benchmarks.engine_studies equivalence run     vLLM and transformers: is held-out success the same?
     python -m benchmarks.engine_studies staleness run       samples that are 0, 1 and 4 steps old, corrected or not
     python -m benchmarks.engine_studies staleness report    one JSON line, and docs/results/staleness.svg

`run` makes every declared run, and continues an interrupted study. `report` is of the finished runs. For `equivalence`
the interpreter must have vLLM (`.venv-vllm/bin/python` after `python scripts/test_lanes.py vllm`).
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from pydantic import JsonValue
from scipy.stats import ttest_ind  # type: ignore[import-untyped]  # shipped without types

from benchmarks._options import print_result
from benchmarks._study_charts import CurvePoint, plot_curves
from benchmarks._study_runs import ROOT, Run, success_after
from benchmarks._study_statistics import Mean, t_interval
from envgym.runs.directory import RunDirectory
from envgym.trainer.methods.corrections import NoCorrection

COMMAND: Final = ("train", "examples/demo.yaml")
WARM_START: Final = 9000
"""Oracle episodes: what examples/demo.yaml had when the studies were declared."""


# ---- equivalence -----------------------------------------------------------------------------------------------------

ENGINES: Final = ("transformers", "vllm")
ENGINE_SEEDS: Final = (10, 11, 12)
ENGINE_STEPS: Final = 70
MARGIN: Final = 0.07
"""The engines count as equivalent where the whole 90 % interval of the difference lies within this."""


def run_engines(out: Path) -> None:
    """Train every engine and seed, one after the other."""
    for seed in ENGINE_SEEDS:
        sets: dict[str, JsonValue] = {"run.seed": seed, "model.tiny.seed": seed, "run.steps": ENGINE_STEPS}
        for engine in ENGINES:
            changes = {**sets, "engine.backend": engine, "sft.episodes": WARM_START}
            Run(name=f"{engine}-{seed}", command=COMMAND, set=changes).make(out)


def report_engines(out: Path) -> dict[str, object]:
    """Return success by run, and vLLM's mean minus transformers' with its 90 % interval by Welch's t over runs."""
    successes = {
        engine: {seed: success_after(out / f"{engine}-{seed}", ENGINE_STEPS) for seed in ENGINE_SEEDS}
        for engine in ENGINES
    }
    values = {engine: [value for value in runs.values() if value is not None] for engine, runs in successes.items()}
    if any(len(runs) < len(ENGINE_SEEDS) for runs in values.values()):
        return {"success": successes}
    interval = ttest_ind(values["vllm"], values["transformers"], equal_var=False).confidence_interval(0.9)
    low, high = float(interval.low), float(interval.high)
    middle = fmean(values["vllm"]) - fmean(values["transformers"])
    is_equivalent = max(-low, high) < MARGIN
    return {
        "success": successes,
        "difference": middle,
        "interval_90": [low, high],
        "is_equivalent": is_equivalent,
    }


# ---- staleness -------------------------------------------------------------------------------------------------------

SEEDS: Final = (20, 21, 22)
STEPS: Final = 40
MARKS: Final = (0, 10, 20, 30, 40)
"""Steps after which a policy is evaluated."""
CORRECTIONS: Final = {"none": "benchmarks.engine_studies:Uncorrected", "tis": "tis"}
FIGURE: Final = ROOT / "docs" / "results" / "staleness.svg"
MISMATCH: Final = (
    "staleness/mean",
    "logprob_gap/mean_abs",
    "logprob_gap/kl",
    "logprob_gap/effective_samples",
    "logprob_gap/truncated",
)
"""Metrics that are reported as their mean over steps, where a run has them."""


class Uncorrected(NoCorrection):
    """No correction, by a name that runs accept with old samples: what they do without one is the question."""

    is_identity = False


class Arm(NamedTuple):
    """What is compared."""

    staleness: int
    correction: str

    @property
    def label(self) -> str:
        return f"staleness {self.staleness}, {self.correction}"

    def run(self, out: Path, seed: int) -> Path:
        return out / f"staleness-{self.staleness}-{self.correction}-{seed}"


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
BySeed = Mapping[int, float]


def run_staleness(out: Path) -> None:
    for seed in SEEDS:
        seeds: dict[str, JsonValue] = {"run.seed": seed, "model.tiny.seed": seed}
        start = {**seeds, "run.steps": 0, "sft.episodes": WARM_START}
        Run(name=f"warm-{seed}", command=COMMAND, set=start).make(out)
        own: dict[str, JsonValue] = {
            **seeds,
            "run.steps": STEPS,
            "run.save_episodes_every": 0,
            "sft": None,
            "model.name": str(out.resolve() / f"warm-{seed}" / "checkpoints" / "step-000000" / "model"),
            "evaluation.every": MARKS[1],
            "evaluation.tasks_during": 300,
        }
        for arm in ARMS:
            sets = {**own, "rollout.staleness": arm.staleness, "correction.name": CORRECTIONS[arm.correction]}
            Run(name=arm.run(out, seed).name, command=COMMAND, set=sets).make(out)


def report_staleness(out: Path) -> dict[str, object]:
    """Draw the curves of the finished seeds, and return their summary."""
    seeds = [seed for seed in SEEDS if all(success_after(arm.run(out, seed), STEPS) is not None for arm in ARMS)]
    if not seeds:
        return {"seeds": []}
    curves = {arm: {mark: _after(out, arm, seeds, mark) for mark in MARKS} for arm in ARMS}
    panels = {
        name: {
            f"staleness {arm.staleness}": [
                CurvePoint(mark, _clipped(t_interval(list(by_seed.values())))) for mark, by_seed in curves[arm].items()
            ]
            for arm in ARMS
            if arm == FRESH or arm.correction == correction
        }
        for name, correction in (("without correction", "none"), ("truncated importance weights", "tis"))
    }
    FIGURE.write_text(plot_curves(panels, axis="train steps"), encoding="utf-8")
    rows = {arm: {seed: RunDirectory.open(arm.run(out, seed)).metrics() for seed in seeds} for arm in ARMS}
    learning = {
        arm: {seed: fmean(row["train/success"] for row in of_run if row["step"] > 0) for seed, of_run in runs.items()}
        for arm, runs in rows.items()
    }
    final = {arm: by_mark[STEPS] for arm, by_mark in curves.items()}
    mismatch = {
        arm.label: {
            name: fmean(values)
            for name in MISMATCH
            if (values := [row[name] for of_run in runs.values() for row in of_run if name in row])
        }
        for arm, runs in rows.items()
    }
    return {
        "seeds": seeds,
        "held_out": {arm.label: _mean(final[arm]) for arm in ARMS},
        "while_learning": {arm.label: _mean(learning[arm]) for arm in ARMS},
        "held_out_differences": _differences(final),
        "while_learning_differences": _differences(learning),
        "mismatch": mismatch,
    }


def _after(out: Path, arm: Arm, seeds: Sequence[int], mark: int) -> dict[int, float]:
    by_seed = {seed: success_after(arm.run(out, seed), mark) for seed in seeds}
    return {seed: share for seed, share in by_seed.items() if share is not None}


def _mean(runs: BySeed) -> dict[str, object]:
    mean = t_interval(list(runs.values()))
    return {"mean": mean.value, "interval_95": [mean.low, mean.high], "runs": runs}


def _differences(runs: Mapping[Arm, BySeed]) -> dict[str, object]:
    return {
        f"{one.label} minus {other.label}": _mean({seed: runs[one][seed] - runs[other][seed] for seed in runs[one]})
        for one, other in CONTRASTS
    }


def _clipped(mean: Mean) -> Mean:
    """Cut an interval off where no share can be."""
    return Mean(mean.value, max(mean.low, 0.0), min(mean.high, 1.0) if math.isfinite(mean.high) else 1.0)


STUDIES: Final = {"equivalence": (run_engines, report_engines), "staleness": (run_staleness, report_staleness)}


def main() -> None:
    """Run or report a study; without a name report both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("what", nargs="?", choices=["run", "report"], default="report")
    options = parser.parse_args()
    reports = {}
    for name, (run, report) in STUDIES.items():
        if options.study in (None, name):
            out = ROOT / "runs" / name
            if options.what == "run":
                run(out)
            reports[name] = report(out)
    print_result("engine_studies", **reports)


if __name__ == "__main__":
    main()
