"""The page of benchmarks/trees.py: areas under the curves, compared by paired seeds, and the data behind it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ttest_1samp  # type: ignore[import-untyped]  # shipped without types

from benchmarks._curves import CurvePoint, Curves, plot
from benchmarks._studies import Mean, minimum_detectable_effect, points, pooled_spread, share, t_interval
from benchmarks._tables import table
from benchmarks._trees_runs import Declaration, TreeRun, area
from envgym.errors import RunError, sentence
from envgym.files import write_atomic
from envgym.stats import HolmStep, correct_by_holm

Pair = tuple[str, str, str]
"""Cell, arm, and what it is compared with."""
ALPHA = 0.05
MARKS = 8
"""Places on the axis of tokens at which the figure shows an interval."""


@dataclass(frozen=True, slots=True)
class Results:
    """The records of the seeds whose runs are whole in every cell and arm."""

    declared: Declaration
    seeds: tuple[int, ...]
    records: dict[tuple[int, str, str], dict[str, Any]]
    """(Seed, cell, arm) -> record."""

    def areas(self, cell: str, arm: str) -> list[float]:
        """Return the area under the curve, by seed."""
        return [area(self.records[seed, cell, arm]["points"], self.declared.budget) for seed in self.seeds]

    def differences(self, cell: str, arm: str, other: str) -> list[float]:
        """Return the paired differences of the areas, by seed."""
        return [mine - its for mine, its in zip(self.areas(cell, arm), self.areas(cell, other), strict=True)]

    def mean(self, cell: str, arm: str, name: str) -> float:
        """Return the mean of a total over seeds."""
        return fmean(self.records[seed, cell, arm][name] for seed in self.seeds)

    def curve(self, cell: str, arm: str) -> list[CurvePoint]:
        """Return the metric at equal distances of the budget, linear between evaluations."""
        budget, found = self.declared.budget, []
        for mark in range(MARKS + 1):
            spent, values = budget * mark / MARKS, []
            for seed in self.seeds:
                curve = np.asarray(self.records[seed, cell, arm]["points"], dtype=np.float64)
                values.append(float(np.interp(spent, curve[:, 0], curve[:, 1])))
            found.append(CurvePoint(spent / 1000, t_interval(values)))
        return found


class Comparison(NamedTuple):
    """A mean difference of paired seeds."""

    mean: Mean
    p_value: float
    """Of the paired t-test, two-sided."""


def compare(differences: Sequence[float]) -> Comparison:
    """Test whether the mean of two or more paired differences is 0; where all are equal p is 0, or 1 if they are 0."""
    if len(set(differences)) == 1:
        return Comparison(t_interval(differences), float(differences[0] == 0))
    return Comparison(t_interval(differences), float(ttest_1samp(differences, 0.0).pvalue))


def primary_differences(declared: Declaration, differences: Mapping[str, Sequence[float]]) -> list[float]:
    """Return what the primary test is about, by seed: of two cells the last less the first, of one cell itself.

    Args:
        declared: the cells.
        differences: cell -> differences of the primary arm to the baseline, by seed.
    """
    first, *rest = (differences[cell] for cell in declared.cells)
    return [more - less for more, less in zip(rest[-1], first, strict=True)] if rest else list(first)


def primary_test(results: Results) -> Comparison:
    """Compare the primary arm with the baseline: with two cells, its difference between the cells."""
    of = results.declared
    return compare(
        primary_differences(of, {cell: results.differences(cell, of.primary, of.baseline) for cell in of.cells})
    )


def read_results(declared: Declaration, runs: Iterable[TreeRun], data: Path | None = None) -> Results:
    """Read the records of whole runs; where there are none, those beside the page."""
    records = [record for run in runs if (record := run.record(declared)) is not None]
    if not records and data is not None and data.exists():
        records = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    found = {(record["seed"], record["cell"], record["arm"]): record for record in records}
    needed = [(cell, arm) for cell in declared.cells for arm in declared.arms]
    seeds = tuple(seed for seed in declared.seeds if all((seed, *key) in found for key in needed))
    return Results(declared, seeds, found)


def best_rates(declared: Declaration, root: Path) -> dict[str, dict[str, float]]:
    """Return for every arm and cell the rate of the largest mean area over the pilot seeds."""
    return {
        arm: {
            cell: max(declared.rates, key=lambda rate: fmean(_pilot(declared, root, cell, arm, rate)))
            for cell in declared.cells
        }
        for arm in declared.arms
    }


def planned_effect(declared: Declaration, root: Path) -> float:
    """Return the result of the primary test that the declared seeds can show, by the spread of the pilot's.

    The spread is pooled over all arms in place of the primary one, as two pilot seeds tell little of each.
    """
    rates, spreads = best_rates(declared, root), []
    areas = {
        (cell, arm): _pilot(declared, root, cell, arm, rates[arm][cell])
        for cell in declared.cells
        for arm in declared.arms
    }
    for arm in declared.arms:
        if arm != declared.baseline:
            pairs = {
                cell: zip(areas[cell, arm], areas[cell, declared.baseline], strict=True) for cell in declared.cells
            }
            spreads.append(primary_differences(declared, {cell: [a - b for a, b in of] for cell, of in pairs.items()}))
    return minimum_detectable_effect(pooled_spread(spreads), len(declared.seeds))


def _pilot(declared: Declaration, root: Path, cell: str, arm: str, rate: float) -> list[float]:
    runs = [TreeRun(root=root, seed=seed, cell=cell, arm=arm, rate=rate) for seed in declared.pilot_seeds]
    return [area(found, declared.budget) for run in runs if (found := run.points(declared)) is not None]


def write_report(declared: Declaration, runs: Sequence[TreeRun], page: Path, text: str) -> None:
    """Write the page from its text, its figure and its data. Raises: RunError: fewer than two seeds are whole."""
    data = page.with_suffix(".jsonl")
    results = read_results(declared, runs, data)
    if len(results.seeds) < 2:
        do = "run the benchmark with `run` first"
        raise RunError(sentence("results", "hold two whole seeds", len(results.seeds), where=page.name, do=do))
    whole = [record for key, record in sorted(results.records.items()) if key[0] in results.seeds]
    write_atomic(data, "".join(f"{json.dumps(record)}\n" for record in whole))
    figure = page.with_suffix(".svg")
    curves: dict[str, Curves] = {
        cell: {arm: results.curve(cell, arm) for arm in declared.arms} for cell in declared.cells
    }
    write_atomic(figure, plot(curves, axis="thousand generated tokens"))
    compared = {
        (cell, *pair): compare(results.differences(cell, *pair)) for cell in declared.cells for pair in declared.pairs
    }
    corrected = dict(zip(compared, correct_by_holm([found.p_value for found in compared.values()]), strict=True))
    primary = primary_test(results)
    page_text = text.format(
        answer=_answer(declared, primary, compared, corrected),
        figure=figure.name,
        cells="\n".join(_cell(results, cell, compared, corrected) for cell in declared.cells),
        others="".join(table(OTHERS_HEAD, _others(declared, compared, corrected))),
        primary=f"{points(primary.mean)} points, p = {primary.p_value:.2g}",
        seeds=len(results.seeds),
        missing=""
        if results.seeds == declared.seeds
        else f" **{len(declared.seeds) - len(results.seeds)} are not finished.**",
        pilots=" and ".join(map(str, declared.pilot_seeds)),
        budget=f"{declared.budget:,}",
        rates=", ".join(f"{rate:g}" for rate in declared.rates),
        effect=f"{100 * (declared.minimum_detectable_effect or 0):.1f}",
        comparisons=len(compared),
    )
    write_atomic(page, page_text)


ARM_HEAD = ["arm", "rate", "area", "difference", "p", "p, Holm", "last", "steps", "prefilled", "s"]
OTHERS_HEAD = ["cell", "arm", "compared with", "difference", "p", "p, Holm"]


def _answer(
    declared: Declaration, primary: Comparison, compared: Mapping[Pair, Comparison], corrected: Mapping[Pair, HolmStep]
) -> str:
    """Return the verdicts: the primary test's, and by corrected p-values those of all pairs."""
    lines = [f"- Primary test: {points(primary.mean)} points, p = {primary.p_value:.2g}."]
    for cell, of in declared.cells.items():
        lines.append(f"- {cell.capitalize()}. Predicted: {of.predicted}.")
        for other in dict.fromkeys(other for _, other in declared.pairs):
            found: dict[str, list[str]] = {"above": [], "below": [], "not distinguishable from": []}
            for arm in (arm for arm, its in declared.pairs if its == other):
                mean = compared[cell, arm, other].mean
                side = "above" if mean.value > 0 else "below"
                is_shown = corrected[cell, arm, other].p_value <= ALPHA
                found[side if is_shown else "not distinguishable from"].append(f"`{arm}` {points(mean)}")
            told = [f"{verdict} `{other}`: {', '.join(arms)}" for verdict, arms in found.items() if arms]
            text = "; ".join(told)
            lines.append(f"    - {text[0].upper()}{text[1:]}.")
    return "\n".join(lines)


def _cell(results: Results, cell: str, compared: Mapping[Pair, Comparison], corrected: Mapping[Pair, HolmStep]) -> str:
    declared, rows = results.declared, []
    for arm, of in declared.arms.items():
        key = (cell, arm, declared.baseline)
        told = ["", "", ""]
        if key in compared:
            told = [points(compared[key].mean), f"{compared[key].p_value:.2g}", f"{corrected[key].p_value:.2g}"]
        last = fmean(results.records[seed, cell, arm]["points"][-1][1] for seed in results.seeds)
        totals = [f"{results.mean(cell, arm, name):,.0f}" for name in ("steps", "prefilled", "seconds")]
        rows.append(
            [
                f"`{arm}`",
                f"{of.rates[cell]:g}",
                share(t_interval(results.areas(cell, arm))),
                *told,
                f"{100 * last:.1f}",
                *totals,
            ]
        )
    return f"## {cell.capitalize()}\n\n{''.join(table(ARM_HEAD, rows))}"


def _others(
    declared: Declaration, compared: Mapping[Pair, Comparison], corrected: Mapping[Pair, HolmStep]
) -> list[list[str]]:
    return [
        [
            cell,
            f"`{arm}`",
            f"`{other}`",
            points(compared[key].mean),
            f"{compared[key].p_value:.2g}",
            f"{corrected[key].p_value:.2g}",
        ]
        for cell in declared.cells
        for arm, other in declared.others
        for key in [(cell, arm, other)]
    ]
