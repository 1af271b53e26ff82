"""What checks and records take of a train step: weight canary, mask audit, saved episodes.

Run: python -m benchmarks._speed_step [--model smollm2] [--steps 3]. Prints one JSON line: seconds of each and their
share of the step, medians over the steps after one to warm up. The steps are those of `benchmarks/trl_step.py`: 8
episodes of one turn of 64 tokens, and of three turns of 32 with a tool between them.
"""

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks._clock import timed
from benchmarks._talks import ENV_ID
from benchmarks.trl_step import Case, Ours
from envgym.registry import register
from envgym.trainer.checks.mask_audit import MaskAudit

CASES = {"single": Case(turns=1, tokens=64, group=8), "tools": Case(turns=3, tokens=32, group=8)}
AUDIT = dict.fromkeys(("begin_step", "record", "check"), "audit")


def measure(case: Case, options: argparse.Namespace) -> dict[str, float]:
    """Train some steps; return the medians, seconds and the share of the three together."""
    taken: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        side = Ours(case, options, Path(folder))
        try:
            for _ in range(options.steps + 1):
                with timed(MaskAudit, AUDIT) as spent:
                    side.step()
                seconds = {name: side.metrics[f"time/{name}_s"] for name in ("step", "canary", "save")} | spent
                checks = seconds["canary"] + seconds["audit"] + seconds["save"]
                taken.append(
                    {**{f"{name}_s": value for name, value in seconds.items()}, "share": checks / seconds["step"]}
                )
        finally:
            side.close()
    return {name: round(statistics.median(step[name] for step in taken[1:]), 5) for name in taken[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=3, help="measured ones, after one to warm up")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    register(ENV_ID, "benchmarks._talks:Ledger")
    cases = {name: measure(case, options) for name, case in CASES.items()}
    settings = {"model": options.model, "threads": options.threads, "python": platform.python_version()}
    print(json.dumps({"benchmark": "speed_step", "cases": cases, **settings}))


if __name__ == "__main__":
    main()
