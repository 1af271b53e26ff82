"""What an evaluation costs beyond generation, and how long the report of 1,000 episodes takes; one line of JSON.

Run: python -m benchmarks.evaluation [--model tiny] [--tasks 272]. Two evaluations of `math/arithmetic-v0` differ in
their tasks alone, so that loading and importing cancel out. The model computes in threads of its own; all else happens
in the main one: environments, rendering, parsing, recording, metrics. `overhead_share` is the processor time of the
main thread over that of the process, with what the environments take in it. `report_s` and `report_cpu_s` are of
`write_run_report` for a run with 1,000 episodes in 10 files; other load on the machine disturbs the first.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks._options import print_result, read_options
from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.settings import EvalSettings
from envgym.report.from_run import write_run_report
from tests.support.large_runs import large_run

LESS = 16
"""Tasks of the smaller evaluation."""
REPORT_STEPS, REPORT_EPISODES = 10, 1000


class Spent(NamedTuple):
    """Seconds of a call."""

    wall: float
    process: float
    main_thread: float


def measured(work: Callable[[], object]) -> Spent:
    before = time.perf_counter(), time.process_time(), time.thread_time()
    work()
    after = time.perf_counter(), time.process_time(), time.thread_time()
    return Spent(*(late - early for early, late in zip(before, after, strict=True)))


def settings_of(model: str, tasks: int, directory: Path) -> EvalSettings:
    """Return the settings of an evaluation: sampled, by one thread, 64 episodes at a time."""
    return EvalSettings.model_validate({
        "run": {"name": "overhead", "seed": 0, "directory": str(directory)},
        "model": {"name": model},
        "engine": {"threads": 1, "concurrency": 64, "max_batch": 64},
        "envs": [{"id": "math/arithmetic-v0"}],
        "evaluation": {"tasks": tasks, "samples": 1, "temperature": 1.0},
    })  # fmt: skip


def main() -> None:
    options = read_options(__doc__, model="tiny", tasks=272)
    with tempfile.TemporaryDirectory() as folder:
        _, few, many = (  # the first one imports what the others need, too
            measured(partial(run_evaluation, settings_of(options.model, count, Path(folder) / str(number))))
            for number, count in enumerate((1, LESS, options.tasks))
        )
        run = large_run(Path(folder) / "run", num_steps=REPORT_STEPS, episodes_per_step=REPORT_EPISODES // REPORT_STEPS)
        report = measured(lambda: write_run_report(run))
    main_s, process_s = many.main_thread - few.main_thread, many.process - few.process
    print_result(
        "evaluation",
        model=options.model,
        episodes=options.tasks - LESS,
        overhead_share=round(main_s / process_s, 4),
        overhead_ms_per_episode=round(1000 * main_s / (options.tasks - LESS), 2),
        report_s=round(report.wall, 2),
        report_cpu_s=round(report.process, 2),
    )


if __name__ == "__main__":
    main()
