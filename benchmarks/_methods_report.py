"""The page of benchmarks/methods.py: what the runs gave, compared, and what that does not show."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks._forest import forest
from benchmarks._methods_cells import EXAMPLES, WARM_START, Cells, Declaration, Result
from benchmarks._studies import (
    LEVEL,
    Mean,
    check_declared,
    minimum_detectable_effect,
    pooled_intervals,
    pooled_spread,
    success,
)
from envgym.errors import RunError, sentence

PAGE = """\
# Methods at equal counted tokens

**Question.** With an equal number of tokens, which of {num_arms} recipes end above or below `{baseline}`?

**Answer.**

{answer}

![Differences of held-out success to `{baseline}`, in points]({figure})

Dots are mean differences to `{baseline}`, paired by seed; lines are 95 % intervals.

{results}

## Conclusions

Written after the runs:

{reading}

## How it was run

```bash
python benchmarks/methods.py run --jobs 2     # continues an interrupted study
python benchmarks/methods.py report
```

- **Runs.** {num_arms} recipes on two environments with a tiny model. For each environment and seed, all recipes
  start from the same warm-started weights and train until they have spent the same number of tokens.
- **Metric.** Success on the same {tasks} held-out tasks after the whole budget, one episode each at temperature 1.
- **Seeds.** {seeds}. Settings were tried on the pilot seeds {pilots} only, which are not shown.
- **Declared in advance.** The settings of each environment, the recipes, the seeds, the budgets, the metric and the
  minimum detectable effect were committed in `examples/methods/` before any declared seed was run. The minimum
  detectable effect was estimated from a few recipes at the pilot seeds.
- **Intervals.** {num_seeds} seeds estimate the standard deviation of one recipe poorly. One standard deviation s is
  therefore used for all recipes of an environment, pooled over their paired differences; intervals are +- t s /
  sqrt({num_seeds}), t with {freedom} degrees of freedom. All differences share the runs of the baseline, so they
  are correlated.
- **Minimum detectable effect** (80 % power): the difference that such an interval detects with probability 0.8.
- **Multiple comparisons.** There are {comparisons} comparisons. A recipe is called significantly above or below
  `{baseline}` only if its interval at level 1 - 0.05 / {comparisons} excludes 0.

## How tokens are counted

The budget counts `cost/tokens_generated` plus `cost/tokens_prefilled` of every train step: each sampled token, and
each context token that was computed in order to sample from it. A prefix is not counted again while its keys and
values are still in the cache. Evaluations, the warm start, the computation of updates, and the scores of a
reference or a critic are not counted. A run stops after the first step at which its budget is spent.

## Limits

- One model of about 0.1 to 0.5 million parameters on two easy environments for a few minutes. The results say
  nothing about language models.
- All recipes of an environment use one learning rate and one group size, chosen for `{baseline}` on a pilot seed.
  Another rate might be better for each; a recipe that is worse here may only be slower at this rate.
- Recipes differ in several choices at once (filter, clip, aggregation, search, credit): a difference is that of the
  recipe, not of its credit alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The runs of one env, of the seeds at which every arm is through."""

    game: str
    baseline: str
    seeds: tuple[int, ...]
    start: Mapping[int, float]
    """Seed -> success of the warm start."""
    runs: Mapping[tuple[int, str], Result]

    def success(self, arm: str) -> list[float]:
        """Return held-out success by seed."""
        return [self.runs[seed, arm].success for seed in self.seeds]

    @property
    def arms(self) -> list[str]:
        """All arms, the baseline first."""
        return list(dict.fromkeys([self.baseline, *(arm for _, arm in self.runs)]))


def read(declared: Declaration, game: str, seeds: Sequence[int], root: Path) -> Results:
    """Read what is there of one env."""
    runs: dict[tuple[int, str], Result] = {}
    whole: list[int] = []
    start: dict[int, float] = {}
    for seed in seeds:
        cells = Cells(declared=declared, game=game, seed=seed, root=root)
        found = {arm: result for arm in declared.arms if (result := cells.result(arm)) is not None}
        begun = success(cells.directory(WARM_START), 0)
        if len(found) == len(declared.arms) and begun is not None:
            whole.append(seed)
            start[seed] = begun
            runs |= {(seed, arm): result for arm, result in found.items()}
    return Results(game=game, baseline=declared.baseline, seeds=tuple(whole), start=start, runs=runs)


def differences(of: Results) -> dict[str, list[float]]:
    """Return each arm's paired differences to the baseline, seed by seed."""
    before = of.success(of.baseline)
    return {
        arm: [one - other for one, other in zip(of.success(arm), before, strict=True)]
        for arm in of.arms
        if arm != of.baseline
    }


def planned_effect(pilot: Results, declared: Declaration) -> float:
    """Return the difference that the declared seeds can show, by the spread of the pilot seeds' differences."""
    freedom = len(declared.compared) * (len(declared.seeds) - 1)
    return minimum_detectable_effect(
        pooled_spread(list(differences(pilot).values())), len(declared.seeds), freedom=freedom
    )


def write_report(declared: Declaration, root: Path, page: Path) -> None:
    """Write the page and, beside it, its figure. Raises: RunError: an env has fewer than two whole seeds."""
    found = {game: read(declared, game, declared.seeds, root) for game in declared.games}
    for game, of in found.items():
        if len(of.seeds) < 2:
            do = "run the benchmark with `run` first"
            raise RunError(sentence("results", "hold two seeds that are through", len(of.seeds), where=game, do=do))
    check_declared(declared.minimum_detectable_effects(found))
    figure = page.with_suffix(".svg")
    panels = {game: pooled_intervals(differences(of)) for game, of in found.items()}
    figure.write_text(forest(panels, axis=f"points of success more than {declared.baseline}"), encoding="utf-8")
    comparisons = len(declared.compared) * len(declared.games)
    text = PAGE.format(
        num_arms=len(declared.arms),
        num_seeds=len(declared.seeds),
        tasks=declared.tasks,
        baseline=declared.baseline,
        answer="\n".join(f"- {game}: {_verdict(of, comparisons)}" for game, of in found.items()),
        figure=figure.name,
        reading=(EXAMPLES / "reading.md").read_text(encoding="utf-8").rstrip(),
        results="\n".join(line for of in found.values() for line in _section(of, declared)).rstrip(),
        seeds=", ".join(map(str, declared.seeds)),
        pilots=", ".join(map(str, declared.pilot_seeds)),
        freedom=len(declared.compared) * (len(declared.seeds) - 1),
        comparisons=comparisons,
    )
    page.write_text(text, encoding="utf-8")


def _section(of: Results, declared: Declaration) -> Iterator[str]:
    effect, budget = declared.games[of.game].minimum_detectable_effect, declared.games[of.game].budget
    assert effect is not None, "checked before"
    plain = pooled_intervals(differences(of), level=LEVEL)
    yield from (f"## {of.game}", "", f"{budget:,} tokens for each run.", "")
    if len(of.seeds) < len(declared.seeds):
        yield from (f"**Only {len(of.seeds)} of the {len(declared.seeds)} declared seeds are complete.**", "")
    yield "| recipe | success | by seed | difference | mean success in training | steps | tokens | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    yield f"| warm start | {_share(fmean(of.start.values()))} | {_list(list(of.start.values()))} | | | | | |"
    for arm in sorted(of.arms, key=lambda arm: -fmean(of.success(arm))):
        runs = [of.runs[seed, arm] for seed in of.seeds]
        yield (
            f"| `{arm}` | {_share(fmean(of.success(arm)))} | {_list(of.success(arm))} | "
            f"{_points(plain[arm]) if arm in plain else ''} | {_share(fmean(run.area for run in runs))} | "
            f"{fmean(run.steps for run in runs):.0f} | {fmean(run.tokens for run in runs):,.0f} | "
            f"{fmean(run.seconds for run in runs):.0f} |"
        )
    freedom = len(differences(of)) * (len(of.seeds) - 1)
    seen = minimum_detectable_effect(pooled_spread(list(differences(of).values())), len(of.seeds), freedom=freedom)
    yield from (
        "",
        f"Minimum detectable effect (80 % power): {100 * effect:.1f} points, as declared from the pilot seeds. With "
        f"the standard deviation of the declared seeds it is {100 * seen:.1f}.",
        "",
    )


def _verdict(of: Results, comparisons: int) -> str:
    """Return in words which arms differ significantly from the baseline, corrected for all comparisons."""
    intervals = pooled_intervals(differences(of), level=1 - 0.05 / comparisons)
    sides = {
        "above": [arm for arm, mean in intervals.items() if mean.low > 0],
        "below": [arm for arm, mean in intervals.items() if mean.high < 0],
    }
    parts = [f"{side} `{of.baseline}`: {', '.join(f'`{arm}`' for arm in arms)}" for side, arms in sides.items() if arms]
    return f"significantly {'; '.join(parts)}." if parts else f"no recipe differs significantly from `{of.baseline}`."


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in values)


def _points(mean: Mean) -> str:
    return f"{100 * mean.value:+.1f} [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]"
