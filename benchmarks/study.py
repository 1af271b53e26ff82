"""Studies: declared beforehand, planned by a pilot, run as `envgym` commands, and reported from their data.

Run: python -m benchmarks.study pilot NAME [--jobs 2]    the pilot's runs, and what they plan
     python -m benchmarks.study run NAME [--jobs 2]      the declared runs; continues an interrupted study
     python -m benchmarks.study report NAME              docs/results/NAME.md and its figure
Without a verb it prints one JSON line about the data that is there. A study is a folder `studies/NAME/`:

    declaration.yaml   question, arms, seeds, metric, comparison, minimum detectable effect, correction
    runs.yaml.jinja    the runs: `envgym` commands over the declaration, with the settings files beside it
    pilot.txt.jinja    what the pilot plans
    results.jsonl      the data: a record of each run; `report --out ROOT` writes it from the runs under ROOT
    published.json     in place of it, the tables of a study whose runs were not recorded
    page.md.jinja      the page
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Final

import numpy as np
import yaml

from benchmarks import _study_statistics as statistics
from benchmarks._pages import template_environment
from benchmarks._study_charts import CurvePoint, plot_curves, plot_differences
from benchmarks._study_results import Declaration, Record, SeedResults, best_rates, planned_primary_effect
from benchmarks._study_runs import ROOT, Run, make_runs
from benchmarks._study_statistics import Mean
from envgym.agents.evaluation.play import EvalRecord
from envgym.config.settings import build_settings, read_settings_file
from envgym.errors import EnvgymError, RunError, SettingsError
from envgym.runs.files import write_atomic
from envgym.seeds import generator
from envgym.stats import PairedComparison, compare_paired, correct_by_holm, minimum_detectable_effect

STUDIES: Final = ROOT / "studies"
PAGES: Final = ROOT / "docs" / "results"


@dataclass(frozen=True, slots=True)
class Study:
    """A study and where its runs lie."""

    folder: Path
    root: Path
    """Directory of the runs."""

    @classmethod
    def named(cls, name: str) -> "Study":
        """Return a study of this repository, with its runs where `--out` puts them by default."""
        return cls(STUDIES / name, Path("runs") / name)

    @property
    def declared(self) -> Declaration:
        """What was declared. Raises: SettingsError: it cannot be read."""
        path = self.folder / "declaration.yaml"
        return build_settings(Declaration, read_settings_file(path), where=f"{self.folder.name}/{path.name}")

    def render(self, template: str, **values: object) -> str:
        """Return a template of the study with its declaration and these values filled in."""
        environment = template_environment([self.folder, STUDIES])
        environment.filters.update(FILTERS)
        environment.globals.update(FUNCTIONS)
        return environment.get_template(template).render(declared=self.declared, name=self.folder.name, **values)

    def runs(self, *, is_pilot: bool = False) -> list[Run]:
        """Return the declared runs, or the pilot's. Raises: SettingsError: a run is not one."""
        declared = self.declared
        seeds = declared.pilot_seeds if is_pilot else declared.seeds
        text = self.render("runs.yaml.jinja", root=self.root.as_posix(), seeds=seeds, is_pilot=is_pilot)
        where = f"{self.folder.name}/runs.yaml.jinja"
        return [build_settings(Run, item, where=where) for item in yaml.safe_load(text) or ()]

    def records(self, runs: Sequence[Run]) -> list[Record]:
        """Return the records of the runs that are whole; a run without a key has none."""
        declared, root = self.declared, ROOT / self.root
        by_task = declared.comparison == "task"
        records = (run.record(root, metric=declared.metric, by_task=by_task) for run in runs if run.key)
        return [record for record in records if record is not None]

    def pilot(self, *, jobs: int) -> list[str]:
        """Make the pilot's runs and print what they plan; return the errors."""
        runs = self.runs(is_pilot=True)
        errors = make_runs(runs, ROOT / self.root, jobs=jobs)
        if not errors:
            print(self.render("pilot.txt.jinja", **self._context(self.records(runs), self.declared.pilot_seeds)))
        return errors

    def run(self, *, jobs: int) -> list[str]:
        """Make the declared runs; return the errors. Raises: SettingsError: an effect is not declared yet."""
        missing = [name for name, effect in self.declared.minimum_detectable_effect.items() if effect is None]
        if missing:
            do = "run `pilot`, write what it prints into declaration.yaml, and commit that"
            must = "be declared before the study is run"
            raise SettingsError.of("minimum_detectable_effect", must, "none", where=", ".join(missing), do=do)
        return make_runs(self.runs(), ROOT / self.root, jobs=jobs)

    def data(self) -> list[Record]:
        """Read the committed records; none where a study has tables only, or was not run."""
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def collect(self) -> None:
        """Write the records of the runs as the data of the study. Raises: RunError: a run is not whole."""
        runs = [run for run in self.runs() if run.key]
        records = self.records(runs)
        if len(records) < len(runs):
            must, got = "be finished", f"{len(runs) - len(records)} that are not"
            raise RunError.of("runs", must, got, where=str(self.root), do="run the study with `run` first")
        write_atomic(self.folder / "results.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))

    def page(self) -> tuple[str, str]:
        """Return the page and its figure as SVG text, which is empty where the page has none.

        Raises: RunError: there is no data.
        """
        context, figures = self._context(self.data(), self.declared.seeds), list[str]()
        path = self.folder / "published.json"
        published = json.loads(path.read_text("utf-8")) if path.exists() else None
        if not context["records"] and published is None:
            do = "run it with `run`, then `report` with --out"
            raise RunError.of("study", "have data", "none", where=self.folder.name, do=do)

        def draw(plot: Callable[..., str], panels: Mapping[str, Any], axis: str) -> str:
            figures.append(plot(panels, axis=axis))
            return f"{self.folder.name}.svg"

        charts = {"curves": partial(draw, plot_curves), "differences": partial(draw, plot_differences)}
        commands = {run.name: " ".join(["envgym", *run.words(self.root)]) for run in self.runs()}
        text = self.render("page.md.jinja", published=published, commands=commands, **charts, **context)
        return text, "".join(figures)

    def report(self, pages: Path = PAGES) -> None:
        text, figure = self.page()
        write_atomic(pages / f"{self.folder.name}.md", text)
        if figure:
            write_atomic(pages / f"{self.folder.name}.svg", figure)

    def _context(self, records: Sequence[Record], seeds: Sequence[int]) -> dict[str, Any]:
        declared, context = self.declared, dict[str, Any]()
        if declared.comparison == "seed":
            context["results"] = SeedResults.of(declared, records, seeds)
            context["best_rates"] = partial(best_rates, declared, records)
            context["planned_primary_effect"] = partial(planned_primary_effect, declared, records)
        elif declared.comparison == "task":
            context["evaluations"] = {
                record["run"]: [EvalRecord.from_json(data) for data in record["evaluations"]] for record in records
            }
        return {**context, "records": {record["run"]: record for record in records if "run" in record} or records}


def paired(before: EvalRecord, after: EvalRecord, label: str = "") -> PairedComparison:
    """Compare two evaluations task by task; `label` seeds the sign flips."""
    rng = generator("environments", label) if label else np.random.default_rng(0)
    return compare_paired(statistics.solved(before), statistics.solved(after), rng=rng)


def success(record: EvalRecord) -> Mean:
    estimate = record.success
    assert estimate is not None, "valid episodes"
    return Mean(estimate.value, estimate.interval.low, estimate.interval.high)


def difference(comparison: PairedComparison) -> Mean:
    interval = comparison.difference.interval
    return Mean(comparison.difference.value, interval.low, interval.high)


def planned_by_tasks(ours: EvalRecord, other: EvalRecord, num_tasks: int) -> float:
    """Return the difference that so many tasks show, by the spread of a pilot's differences."""
    mine, its = statistics.solved(ours), statistics.solved(other)
    return minimum_detectable_effect(num_tasks, variance(fmean(mine[task]) - fmean(its[task]) for task in mine))


def share(mean: Sequence[float], unit: str = "", sign: str = "") -> str:
    """Return a share in percent, or with `sign` a difference in points, with its interval."""
    value, low, high = (f"{100 * number:{sign}.1f}" for number in mean)
    return f"{value}{unit} [{low}, {high}]"


FUNCTIONS: Final[Mapping[str, Any]] = {
    "sets": lambda items, option: [word for item in items for word in (option, item)],
    "paired": paired,
    "success": success,
    "difference": difference,
    "holm": lambda p_values: [step.p_value for step in correct_by_holm(list(p_values))],
    "combined_p_value": statistics.combined_p_value,
    "detectable_by_interval": statistics.detectable_by_interval,
    "planned_by_tasks": planned_by_tasks,
    "interval": statistics.t_interval,
    "solved_share": lambda record: fmean(map(fmean, statistics.solved(record).values())),
    "point": CurvePoint,
    "curve_of": lambda points: [CurvePoint(spent / 1000, Mean(*mean)) for spent, *mean in points],
    "mean_of": lambda values: Mean(*values),
}
"""Names that templates use."""
FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "success": success,
    "difference": difference,
    "share": share,
    "points": partial(share, sign="+"),
    "mean": fmean,
    "capitalized": lambda text: text[0].upper() + text[1:],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make runs, write a page, or print what data there is."""
    names = sorted(path.parent.name for path in STUDIES.glob("*/declaration.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", nargs="?", choices=("pilot", "run", "report"), help="default: one JSON line")
    parser.add_argument("name", nargs="?", choices=names)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--out", type=Path, help="directory of the runs, by default runs/NAME; of `report`: collect them"
    )
    args = parser.parse_args(arguments)
    if args.verb is None:
        print(json.dumps({"benchmark": "study", "records": {name: len(Study.named(name).data()) for name in names}}))
        return 0
    if args.name is None:
        parser.error(f"{args.verb} must name a study, one of: {', '.join(names)}")
    study = Study(STUDIES / args.name, args.out or Path("runs") / args.name)
    errors: list[str] = []
    try:
        if args.verb != "report":
            errors = (study.pilot if args.verb == "pilot" else study.run)(jobs=args.jobs)
        elif args.out is not None:
            study.collect()
        if args.verb == "report":
            study.report()
    except EnvgymError as refusal:
        errors = [str(refusal)]
    for error in errors:
        print(f"failed: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
