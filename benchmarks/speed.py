"""Measure the speed of every part beside the libraries that do the same, and write the pages of the results.

Run: make speed, or python -m benchmarks.speed [--only PART ...] [--resume] [--all] [--page docs/results/speed.md].
Writes the page, a JSON file beside it with what was measured, and `packing.md`. Parts and aims are in
`benchmarks/speed.toml`.

Parts run one after another, each a benchmark in a process of its own with a time limit; nothing is run twice. A part
that fails or is stopped has its reason in the file. `--only` replaces the figures of some parts and keeps those of the
others. The file is written after every part, so that a run that was stopped loses one part at most; `--resume` goes on.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks._pages import render_packing, render_speed
from benchmarks._processes import ROOT, reason_of, run_until
from benchmarks._speed_machine import adopt_orphans, describe_machine, other_seconds
from benchmarks._speed_plan import Part, Record, arguments_of, is_idle, read_plan, read_profiles
from envgym.runs.files import write_atomic, write_json
from scripts.lanes.running import slowness

PAGE: Final = ROOT / "docs" / "results" / "speed.md"


def measure(part: Part, *, more: bool, root: Path = ROOT) -> dict[str, Any]:
    """Run a part; return its `result` or `error`, and what else the machine did meanwhile.

    Args:
        part: the benchmark.
        more: the arguments of --all.
        root: where the environments of parts lie.
    """
    words = ["-m", part.module, *arguments_of(part, more=more)]
    starter = ["python", "scripts/with_docker.py"] if part.docker else []
    shown = f".venv-{part.environment}/bin/python" if part.environment else "python"
    python = str(root / shown) if part.environment else sys.executable
    times_as_slow = min(slowness() for _ in range(5))
    load_before, others_before, started = os.getloadavg()[0], other_seconds(os.getpid()), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        if Path(python).exists():
            command = [*([sys.executable, *starter[1:]] if starter else []), python, *words]
            code = run_until(command, part.limit_s, output=output, errors=errors)
            found = _found(code, part.limit_s, output, errors)
        else:
            found = {"error": f"the other libraries are not installed: `make speed` makes .venv-{part.environment}"}
    seconds, others_after = time.monotonic() - started, other_seconds(os.getpid())
    others = None if others_before is None or others_after is None else (others_after - others_before) / seconds
    return {
        "command": shlex.join([*starter, shown, *words]),
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(seconds, 1),
        "slowness": round(times_as_slow, 2),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "others_cores": None if others is None else round(others, 3),
        **found,
    }


def _found(code: int | None, limit_s: float, output: Path, errors: Path) -> dict[str, Any]:
    """Return the JSON that a benchmark printed, its last line or all of it, or why there is none."""
    if code != 0:
        return {"error": reason_of(code, limit_s, errors)}
    text = output.read_text(encoding="utf-8")
    last = text.rstrip().rpartition("\n")[2]
    for candidate in (last, text):
        with suppress(json.JSONDecodeError):
            return {"result": json.loads(candidate)}
    return {"error": f"the last line that was printed is no JSON\n{last}"}


def read_record(path: Path) -> dict[str, Any]:
    """Return what is in the file, or a record without parts."""
    machine = describe_machine()
    if not path.exists():
        return {"machine": machine, "parts": {}}
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def write_pages(page: Path, record: Record) -> None:
    write_json(page.with_suffix(".json"), record)
    write_atomic(page, render_speed(read_plan(), record, read_profiles()))
    write_atomic(page.with_name("packing.md"), render_packing(record))


def main() -> int:
    """Measure the parts that are asked for, and write what was found."""
    plan = read_plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="PART", choices=list(plan.parts), help=f"of {' '.join(plan.parts)}"
    )
    parser.add_argument("--resume", action="store_true", help="keep what is in the file, and measure what it lacks")
    parser.add_argument("--all", action="store_true", help="every cell of packing, which takes much longer")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/results/speed.md")
    parser.add_argument("--render", action="store_true", help="measure nothing: write the pages from the file")
    options = parser.parse_args()
    record = read_record(options.page.with_suffix(".json"))
    if options.render:
        write_pages(options.page, record)
        return 0
    machine = describe_machine()
    if (options.only or options.resume) and record["machine"] != machine:
        parser.error(
            f"--only and --resume must run on the machine and versions of the other figures, got {machine} "
            f"({options.page.with_suffix('.json')} is of {record['machine']}); measure all parts"
        )
    if not (options.only or options.resume):
        record = {"machine": machine, "parts": {}}
    chosen = options.only or plan.parts
    if options.resume:
        chosen = [name for name in chosen if "result" not in record["parts"].get(name, {})]
    adopt_orphans()
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        measured = measure(plan.parts[name], more=options.all)
        record["parts"][name] = measured
        write_pages(options.page, record)
        state = measured.get("error", "measured" if is_idle(measured) else "measured, not idle").partition("\n")[0]
        print(f"{name}: {state}, {measured['seconds']:.0f} s", file=sys.stderr, flush=True)
    failed = [name for name in chosen if "error" in record["parts"][name]]
    print(json.dumps({"benchmark": "speed", "page": str(options.page), "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
