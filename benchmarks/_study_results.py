"""Results of studies that compare seeds: the records of runs, paired by seed, and what the tests of a study need.

A record of a run is a dictionary of plain JSON types, as `benchmarks._study_runs` writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, JsonValue

from benchmarks._study_charts import CurvePoint, Curves
from benchmarks._study_statistics import (
    Comparison,
    area,
    compare,
    interpolated,
    minimum_detectable_effect,
    pooled_intervals,
    pooled_spread,
    t_interval,
)
from envgym.config.settings import Settings
from envgym.stats import correct_by_holm

Record = Mapping[str, Any]  # a JSON object
ALPHA = 0.05
WARM_START = "warm_start"
"""Arm of the runs that the others begin with."""
MARKS = 8
"""Places on the axis of tokens at which a figure has an interval."""


class Declaration(Settings):
    question: str
    """What the study asks; the page asks it in its own words."""
    metric: str
    """Metric of the held-out tasks: `success`, or one that the settings name."""
    comparison: Literal["seed", "task", "none"]
    """What is paired; `none`: the page has the figures of a program that is no training."""
    correction: Literal["none", "bonferroni", "holm"]
    """Of the p-values, over all comparisons."""
    seeds: tuple[int, ...]
    pilot_seeds: tuple[int, ...]
    baseline: str
    """The arm that the others are compared with."""
    others: tuple[tuple[str, str], ...] = ()
    """Further pairs of arms that are compared."""
    minimum_detectable_effect: dict[str, float | None]
    """Difference that the study shows with probability 0.8, by the pilot. While one is None nothing declared is run."""
    cells: dict[str, dict[str, JsonValue]]
    """What every arm runs on: an environment, or settings of one."""
    arms: dict[str, dict[str, Any]]
    """What is compared."""
    constants: dict[str, Any] = Field(default_factory=dict)
    """Everything else that the runs depend on: budgets, numbers of tasks."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What is compared in every cell: an arm, and what it is compared with."""
        return [*((arm, self.baseline) for arm in self.arms if arm != self.baseline), *self.others]


@dataclass(frozen=True, slots=True)
class SeedResults:
    """The records of the seeds whose runs are whole in every cell and arm."""

    declared: Declaration
    seeds: tuple[int, ...]
    records: Mapping[tuple[int, str, str], Record]
    """(Seed, cell, arm) -> record."""

    @classmethod
    def of(cls, declared: Declaration, records: Iterable[Record], seeds: Sequence[int]) -> "SeedResults":
        by_key = {(record["seed"], record["cell"], record["arm"]): record for record in records}
        needed = [(cell, arm) for cell in declared.cells for arm in declared.arms]
        whole = tuple(seed for seed in seeds if all((seed, *key) in by_key for key in needed))
        return cls(declared, whole, by_key)

    def budget(self, cell: str) -> float:
        """Return the tokens that a run of a cell may spend."""
        return float(self.declared.cells[cell].get("budget") or self.declared.constants["budget"])  # type: ignore[arg-type]  # a number

    def final(self, cell: str, arm: str) -> list[float]:
        """Return the metric after the whole budget, by seed."""
        return [float(self.records[seed, cell, arm]["points"][-1][1]) for seed in self.seeds]

    def areas(self, cell: str, arm: str) -> list[float]:
        """Return the area under the curve divided by the budget, by seed."""
        return [area(self.records[seed, cell, arm]["points"], self.budget(cell)) for seed in self.seeds]

    def mean(self, cell: str, arm: str, name: str) -> float:
        return fmean(self.records[seed, cell, arm][name] for seed in self.seeds)

    def differences(self, cell: str, arm: str, other: str, *, is_area: bool = True) -> list[float]:
        """Return the paired differences of the areas, or of the final metric, by seed."""
        values = self.areas if is_area else self.final
        return [mine - its for mine, its in zip(values(cell, arm), values(cell, other), strict=True)]

    def curves(self, cell: str) -> Curves:
        """Return the metric of every arm at equal distances of the budget, in thousand tokens."""
        marks = [self.budget(cell) * mark / MARKS for mark in range(MARKS + 1)]

        def point(arm: str, spent: float) -> CurvePoint:
            values = [interpolated(self.records[seed, cell, arm]["points"], spent) for seed in self.seeds]
            return CurvePoint(spent / 1000, t_interval(values))

        return {arm: [point(arm, spent) for spent in marks] for arm in self.declared.arms}

    def compared(self) -> dict[tuple[str, str, str], tuple[Comparison, float]]:
        """Return (cell, arm, other) -> the comparison of areas, and its p-value by Holm over all."""
        comparisons = {
            (cell, *pair): compare(self.differences(cell, *pair))
            for cell in self.declared.cells
            for pair in self.declared.pairs
        }
        steps = correct_by_holm([of.p_value for of in comparisons.values()])
        return {key: (of, step.p_value) for (key, of), step in zip(comparisons.items(), steps, strict=True)}

    def primary_differences(self, arm: str) -> list[float]:
        """Return an arm's difference to the baseline, by seed; of several cells, the last less the first."""
        first, *rest = (self.differences(cell, arm, self.declared.baseline) for cell in self.declared.cells)
        return [more - less for more, less in zip(rest[-1], first, strict=True)] if rest else first

    def primary_test(self) -> Comparison:
        return compare(self.primary_differences(self.declared.constants["primary"]))

    def final_differences(self, cell: str) -> dict[str, list[float]]:
        """Return arm -> the paired differences of the final metric to the baseline."""
        base = self.declared.baseline
        return {arm: self.differences(cell, arm, base, is_area=False) for arm in self.declared.arms if arm != base}

    def detectable_effect(self, cell: str, num_seeds: int) -> float:
        """Return the final difference that so many seeds show, by the spread of these, pooled over the arms."""
        by_arm = self.final_differences(cell)
        spread = pooled_spread(list(by_arm.values()))
        return minimum_detectable_effect(spread, num_seeds, freedom=len(by_arm) * (num_seeds - 1))

    def summary(self, cell: str) -> dict[str, Any]:
        """Return the table of final metrics of a cell, the best arm first; intervals are pooled over the arms."""
        by_arm = self.final_differences(cell)
        comparisons = len(by_arm) * len(self.declared.cells)
        intervals, corrected = pooled_intervals(by_arm), pooled_intervals(by_arm, level=1 - ALPHA / comparisons)

        def row(arm: str) -> dict[str, Any]:
            sides = {"above": corrected[arm].low > 0, "below": corrected[arm].high < 0} if arm in corrected else {}
            totals = {name: self.mean(cell, arm, name) for name in ("training", "steps", "tokens", "seconds")}
            return {
                "by_seed": self.final(cell, arm),
                "success": fmean(self.final(cell, arm)),
                "difference": intervals.get(arm),
                "verdict": next((side for side, holds in sides.items() if holds), ""),
                **totals,
            }

        start = self.final(cell, WARM_START)
        return {
            "num_seeds": len(self.seeds),
            "start": {"by_seed": start, "success": fmean(start)},
            "arms": dict(sorted(((arm, row(arm)) for arm in self.declared.arms), key=lambda item: -item[1]["success"])),
            "detectable": self.detectable_effect(cell, len(self.seeds)),
        }


def best_rates(declared: Declaration, records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return for every arm and cell the learning rate of the largest mean area over the pilot seeds."""

    def mean_area(arm: str, cell: str, rate: float) -> float:
        of = [item for item in records if (item["arm"], item["cell"], item["rate"]) == (arm, cell, rate)]
        return fmean(area(item["points"], declared.constants["budget"]) for item in of)

    rates = declared.constants["rates"]
    return {
        arm: {cell: max(rates, key=lambda rate: mean_area(arm, cell, rate)) for cell in declared.cells}
        for arm in declared.arms
    }


def planned_primary_effect(declared: Declaration, records: Sequence[Record]) -> float:
    """Return the result of the primary test that the declared seeds can show, by the spread of the pilot's.

    Every arm has its best rate. The spread is pooled over all arms, as two pilot seeds are few for each.
    """
    rates = best_rates(declared, records)
    best = [record for record in records if record["rate"] == rates[record["arm"]][record["cell"]]]
    pilot = SeedResults.of(declared, best, declared.pilot_seeds)
    spreads = [pilot.primary_differences(arm) for arm in declared.arms if arm != declared.baseline]
    return minimum_detectable_effect(pooled_spread(spreads), len(declared.seeds))
