"""How well `envgym plan` predicts: four runs on this processor, predicted and measured.

Run: python -m benchmarks.plan [--steps 3] [--runs NAME ...]. Prints one JSON line: for each run the predicted and the
measured seconds of a train step, and the predicted and the measured bytes of its processes.

The constants of the processor are measured before and after each run, and both count. All times are processor time of
one thread, which other programs disturb less than wall time; that of a step is the sum along its critical path, and the
median of the steps after the first. Memory is the peak of a process. What a process holds without a model is measured
with the same run of the smallest model. The untrained policy talks to an environment that always gives the same reply;
the lengths of its episodes are counted, not predicted.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks._options import print_result, read_options
from benchmarks._plan_runs import RUNS, settings_of
from benchmarks._processes import reason_of, run_until
from benchmarks._processor import Calibration, calibrate, device_of, fit
from benchmarks._rank_link import measure_link
from envgym.trainer.method import build_method
from envgym.trainer.planning.constants import Device, control
from envgym.trainer.planning.predict import Plan, predict
from envgym.trainer.planning.shapes import model_shape
from envgym.trainer.planning.workload import Workload

MEMORY: Final = 16e9
_LIMIT_S: Final = 900.0


def played(name: str, steps: int, size: str) -> dict[str, Any]:
    """Play a run in a process of its own, so that its memory is its own. Raises: RuntimeError: it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        command = [sys.executable, "-m", "benchmarks._plan_runs", name, str(steps), size]
        code = run_until(command, _LIMIT_S, output=output, errors=errors)
        if code != 0:
            raise RuntimeError(reason_of(code, _LIMIT_S, errors))
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8").splitlines()[-1])
        return result


def predicted(name: str, workload: Workload, device: Device) -> Plan:
    settings = settings_of(name, 1, Path("run"))
    settings = settings.model_copy(update={"model": settings.model.on("cpu")})
    shape = model_shape(settings.model, settings.optim, size=None, has_reference=False, device_type="cpu")
    return predict(settings, workload, shape, device, control(), build_method(settings, warns=False).objective)


def measure(names: Sequence[str], steps: int) -> dict[str, object]:
    """Return predicted and measured seconds and bytes of runs; the calibration after a run is the one before the next.

    Memory is compared with and without the libraries.
    """
    results: dict[str, object] = {}
    before = _calibrate()
    for name in names:
        has_ranks = RUNS[name].launch.get("learners", 1) > 1
        links = measure_link() if has_ranks else []
        run, after = played(name, steps + 1, "full"), _calibrate()
        links += measure_link() if has_ranks else []
        base = played(name, 2, "smallest")
        device = replace(device_of(before + after, MEMORY), heap_overhead=base["heap_overhead"])
        if links:
            gather_layer_s, per_byte = fit(links)
            device = replace(device, gather_layer_s=gather_layer_s, link=1 / max(per_byte, 1e-18))
        results[name] = _compare(name, run, base, device)
        print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
        before = after
    return results


def _calibrate() -> Calibration:
    return calibrate(threads=1, clock=time.process_time)


def _compare(name: str, run: dict[str, Any], base: dict[str, Any], device: Device) -> dict[str, object]:
    result: dict[str, object] = {}
    workload, seconds = Workload(**run["workload"]), median(run["seconds"])
    for role, peak in run["peaks"].items():
        if role == "rank":
            continue  # a plan has the memory of rank 0, which holds the most
        libraries = base["peaks"][role]
        plan = predicted(name, workload, replace(device, libraries=libraries))
        parts = plan.sampler_memory if role == "server" else plan.learner_memory
        total = sum(parts.values())
        result[f"memory of {role}"] = {
            "predicted_bytes": total,
            "measured_bytes": peak,
            "ratio": round(total / peak, 3),
            "libraries_bytes": libraries,
            "ratio_without_libraries": round((total - libraries) / (peak - libraries), 3),
        }
    parts_s = {part: round(value, 3) for part, value in plan.seconds.items()}
    return {
        "predicted_s": round(plan.step_s, 3),
        "measured_s": round(seconds, 3),
        "ratio": round(plan.step_s / seconds, 3),
        "wall_s": round(median(run["wall"]), 3),
        "predicted_parts_s": parts_s,
        **result,
    }


def main() -> None:
    options = read_options(__doc__, steps=3, runs=tuple(RUNS))
    print_result("plan", runs=measure(options.runs, options.steps))


if __name__ == "__main__":
    main()
