"""What checks and records take of a train step: weight canary, mask audit, saved episodes.

Run: python -m benchmarks._speed_step [--model smollm2] [--steps 3]. Prints one JSON line: seconds of each and their
share of the step, medians over the steps after one to warm up. The steps are those of `benchmarks/trl_step.py`: 8
episodes of one turn of 64 tokens, and of three turns of 32 with a tool between them.

The canary is the first to use an update's weights: a policy on a CPU lays out its copies of them then (`copies`).
The rollout that follows would do it otherwise, and does not do it again: the canary's share is without it, and
`share_with_copies` is with it. The check of the step's own samples inside the update (`samples`) counts.
"""

import argparse
import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks._clock import timed
from benchmarks._options import print_result, read_options
from benchmarks._talks import ENV_ID
from benchmarks.trl_step import Case, Ours
from envgym.agents.policies.engine import llama_forward as _llama_forward
from envgym.agents.policies.engine import packed_linears as _packed_linears
from envgym.registry import register
from envgym.trainer.checks.mask_audit import MaskAudit
from envgym.trainer.checks.weight_canary import WeightCanary

CASES = {"single": Case(turns=1, tokens=64, group=8), "tools": Case(turns=3, tokens=32, group=8)}
AUDIT = dict.fromkeys(("begin_step", "record", "check"), "audit")
SAMPLES = dict.fromkeys(("samples_check", "_check_samples"), "samples")
COPIES = {"packed_product": "copies"}


def measure(case: Case, options: argparse.Namespace) -> dict[str, float]:
    """Train some steps; return the medians, seconds and the share of the three together."""
    taken: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        side = Ours(case, options, Path(folder))
        try:
            for _ in range(options.steps + 1):
                with (
                    timed(MaskAudit, AUDIT) as audit,
                    timed(WeightCanary, SAMPLES) as samples,
                    timed(_packed_linears, COPIES) as one_by_one,
                    timed(_llama_forward, COPIES) as joined,
                ):
                    side.step()
                seconds = (
                    {name: side.metrics[f"time/{name}_s"] for name in ("step", "canary", "save")} | audit | samples
                )
                seconds["copies"] = one_by_one["copies"] + joined["copies"]
                checks = sum(seconds[name] for name in ("canary", "samples", "audit", "save"))
                shares = {
                    "share": (checks - seconds["copies"]) / seconds["step"],
                    "share_with_copies": checks / seconds["step"],
                }
                taken.append({f"{name}_s": value for name, value in seconds.items()} | shares)
        finally:
            side.close()
    return {name: round(statistics.median(step[name] for step in taken[1:]), 5) for name in taken[0]}


def main() -> None:
    options = read_options(__doc__, model="smollm2", steps=3, threads=os.cpu_count())
    torch.set_num_threads(options.threads)
    register(ENV_ID, "benchmarks._talks:Ledger")
    cases = {name: measure(case, options) for name, case in CASES.items()}
    print_result("speed_step", cases=cases, model=options.model, threads=options.threads)


if __name__ == "__main__":
    main()
