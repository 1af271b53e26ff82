"""Write docs/results/demo.json, the figures of one run of `make demo` that pages quote.

Run: python scripts/demo_results.py runs/demo. `scripts/page_figures.py` writes the figures into the pages, and
`scripts/view_pictures.py` takes the pictures of the same run.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks._speed_machine import describe_machine
from envgym.errors import InvalidInput
from envgym.report.from_run import report_of_run
from envgym.runs.directory import RunDirectory
from envgym.runs.files import write_json
from envgym.runs.wall_time import read_wall_time
from envgym.stats import Estimate

RECORD: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "demo.json"


def demo_record(run: RunDirectory) -> dict[str, Any]:
    """Return the machine, the settings and the success before and after of a run, all shares in percent.

    Raises: InvalidInput: the run has no evaluation before and after its training.
    """
    report = report_of_run(run)
    do = "wait for its last evaluation"
    InvalidInput.unless(report.comparisons, "run", "have two evaluations", "fewer", where=str(run.path), do=do)
    (headline, *_) = report.comparisons
    curve = [(each.step, each.success.valid) for each in report.evaluations if each.label == headline.label]
    return {
        "measured": datetime.fromtimestamp((run.path / "report.html").stat().st_mtime, UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "seed": run.config["run"]["seed"],
        "steps": headline.after_step,
        "tasks": headline.paired.num_tasks,
        "wall_s": round(sum(device.seconds for device in read_wall_time(run.path))),
        "before": _percent(headline.before),
        "after": _percent(headline.after),
        "difference": _percent(headline.paired.difference),
        "curve": [[step, round(100 * success.value, 1)] for step, success in curve if success is not None],
    }


def _percent(estimate: Estimate) -> dict[str, float]:
    shares = (estimate.value, estimate.interval.low, estimate.interval.high)
    return dict(zip(("value", "low", "high"), (round(100 * share, 1) for share in shares), strict=True))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    write_json(RECORD, demo_record(RunDirectory.open(parser.parse_args().run)))
    print("docs/results/demo.json")


if __name__ == "__main__":
    main()
