"""Check the code that runs on a GPU, then measure it: packed training and sampling, at the shapes of Qwen2.5.

Run: make gpu, or python -m benchmarks.gpu [--limit-s 570] [--peak-tflops 790]. Prints one JSON line, and writes it to
docs/results/gpu.json with the page docs/results/gpu.md. Without CUDA, or with --dry-run, everything runs in small on
the CPU, and nothing but the line is written.

Every stage is a process of its own with a time limit: where one fails, its traceback is in its place, and the others
go on. The checks (benchmarks/_gpu_checks.py) run side by side, then the measurements (benchmarks/_gpu_speed.py) one
after the other. No model, index or network is needed.
"""

import argparse
import importlib.util
import json
import logging
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks._pages import render_gpu
from benchmarks._processes import ROOT, reason_of, run_until
from envgym import __version__

RESULTS: Final = ROOT / "docs" / "results"
PEAK_TFLOPS: Final = 790.0
"""Dense bfloat16 products of an H200, measured: 10^12 operations per second."""


class Stage(NamedTuple):
    """One process."""

    name: str
    limit_s: int


MACHINE: Final = Stage("machine", 90)
CHECKS: Final = tuple(
    Stage(name, 240)
    for name in ("attention", "packing", "compiled", "precision", "sampling", "demo", "server", "resume")
)
SPEED: Final = (
    *(
        Stage(f"{kind} {size}", limit)
        for kind, limit in (("training", 100), ("sampling", 140), ("compiled", 100))
        for size in ("0.5B", "1.5B")
    ),
    Stage("turns 1.5B", 150),
)


class Plan(NamedTuple):
    """How the stages run."""

    is_dry: bool
    """Small, and on the CPU."""
    peak_tflops: float
    deadline: float
    """On `time.monotonic`."""
    bandwidth: float = 0.0
    """Bytes per second of a copy on the device, as the first stage measured it."""


def run_stage(stage: Stage, plan: Plan) -> dict[str, Any]:
    """Run a stage in a process of its own; return its numbers or its `error`, and the seconds that it took."""
    left = min(stage.limit_s, plan.deadline - time.monotonic())
    if left < 1:
        return {"error": "skipped: no time was left", "seconds": 0.0}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "stage.json", Path(folder) / "log"
        command = [sys.executable, "-m", "benchmarks.gpu", "--stage", stage.name, "--out", str(out)]
        command += ["--peak-tflops", str(plan.peak_tflops), "--bandwidth", str(plan.bandwidth)]
        code = run_until(command + ["--dry-run"] * plan.is_dry, left, output=log)
        found = json.loads(out.read_text(encoding="utf-8")) if code == 0 and out.exists() else {}
        if not found:
            found = {"error": reason_of(code, left, log)}
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def stage_result(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Do the work of a stage, in its own process; return its numbers, and the `warnings` that were logged meanwhile."""
    logged = BufferingHandler(sys.maxsize)
    logged.setLevel(logging.WARNING)
    logging.getLogger("envgym").addHandler(logged)
    try:
        found = _work(name, options)
    finally:
        logging.getLogger("envgym").removeHandler(logged)
    warnings = dict.fromkeys(record.getMessage() for record in logged.buffer)
    return {**found, "warnings": list(warnings)} if warnings else found


def _work(name: str, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    device = torch.device("cpu" if options.dry_run else "cuda")
    kind, _, size = name.partition(" ")
    if name == MACHINE.name:
        return _describe(options.dry_run)
    if not size:
        from benchmarks._gpu_checks import CHECKS as WORK

        return WORK[name](device, options.dry_run).to_json()
    from benchmarks import _gpu_speed

    if kind == "training":
        return _gpu_speed.measure_training(size, device, 1e12 * options.peak_tflops, options.dry_run)
    if kind == "compiled":
        return _gpu_speed.measure_compiled(size, device, 1e12 * options.peak_tflops, options.dry_run)
    if kind == "turns":
        return _gpu_speed.measure_turns(size, device, options.dry_run)
    return _gpu_speed.measure_sampling(size, device, options.bandwidth, options.dry_run)


def _describe(is_dry: bool) -> dict[str, Any]:
    import torch
    import transformers

    from benchmarks import _gpu_speed

    is_dry = is_dry or not torch.cuda.is_available()
    device = torch.device("cpu" if is_dry else "cuda")
    return {
        "device": "cpu" if is_dry else torch.cuda.get_device_name(device),
        "memory_gib": None if is_dry else torch.cuda.get_device_properties(device).total_memory / 2**30,
        "copy_bytes_per_s": _gpu_speed.copy_bandwidth(device, is_dry),
        "product_flops": _gpu_speed.matmul_flops(device, is_dry),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


def run_all(plan: Plan) -> dict[str, Any]:
    """Run every stage and return what they found, by name."""
    machine = run_stage(MACHINE, plan)
    is_dry = plan.is_dry or machine.get("device", "cpu") == "cpu"
    if is_dry and not plan.is_dry:
        print("CUDA is not available: this is a dry run on the CPU, and its numbers mean nothing.", file=sys.stderr)
    plan = plan._replace(is_dry=is_dry, bandwidth=machine.get("copy_bytes_per_s", 0.0))
    with ThreadPoolExecutor(1 if is_dry else len(CHECKS)) as together:
        found = dict(zip([s.name for s in CHECKS], together.map(lambda s: run_stage(s, plan), CHECKS), strict=True))
    speed = {stage.name: run_stage(stage, plan) for stage in SPEED}
    return {
        "benchmark": "gpu",
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "dry_run": is_dry,
        "peak_tflops": plan.peak_tflops,
        "machine": machine,
        **found,
        **speed,
    }


def _commit() -> str:
    """Return the abbreviated commit of this checkout, or the version where it is no git checkout."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return f"version {__version__}"


def failures(record: Mapping[str, Any]) -> list[str]:
    """Return what did not work: stages that raised, were stopped or warned, and checks beyond their bound.

    A warning is a failure because it tells of something that is done another way than on a GPU it should be.
    """
    stages = {name: found for name, found in record.items() if isinstance(found, dict)}
    broken = [f"{name}: {found['error']}" for name, found in stages.items() if "error" in found]
    broken += [f"{name}: {warning}" for name, found in stages.items() for warning in found.get("warnings", ())]
    checks = [(name, check) for name, found in stages.items() for check in found.get("checks", ())]
    return broken + [
        f"{name}: {check['name']} must be at most {check['bound']:g}, got {check['value']:g}"
        for name, check in checks
        if not check["passed"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--limit-s", type=float, default=570.0, help="for all stages together (default: 570)")
    parser.add_argument("--peak-tflops", type=float, default=PEAK_TFLOPS, help="of dense bfloat16 products (H200: 790)")
    parser.add_argument("--out", type=Path, help="JSON (default: docs/results/gpu.json; nowhere after a dry run)")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--bandwidth", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
        parser.error(f"{missing[0]} must be installed for {sys.executable}; set GPU_PYTHON to a Python that has it")
    if options.stage:
        options.out.write_text(json.dumps(stage_result(options.stage, options)), encoding="utf-8")
        return 0
    deadline = time.monotonic() + options.limit_s
    record = run_all(Plan(options.dry_run, options.peak_tflops, deadline))
    line = json.dumps(record)
    print(line)
    if not record["dry_run"]:
        (RESULTS / "gpu.md").write_text(render_gpu(record), encoding="utf-8")
    if out := options.out or (None if record["dry_run"] else RESULTS / "gpu.json"):
        out.write_text(line + "\n", encoding="utf-8")
    failed = failures(record)
    print(*failed, f"{len(failed)} failed", sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
