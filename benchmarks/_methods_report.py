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

{num_arms} recipes on two envs, a tiny model, {num_seeds} seeds. For each env and seed all start from the same
warm-started weights, train until they have spent the same number of tokens, and are then evaluated on the same
{tasks} held-out tasks, one episode each at temperature 1.

![Differences of held-out success to `{baseline}`, in points]({figure})

Dots are mean differences to `{baseline}`, paired by seed; lines are 95 % intervals.

{results}

## Reading it

Written after the runs, which it tells of:

{reading}

## What was declared beforehand

`examples/methods/` was committed before any declared seed was run: the settings of each env, the arms, the seeds
{seeds}, the budgets, the metric (success after the whole budget) and the smallest effect, which rests on a few arms at
the pilot seeds {pilots}. Settings were tried on these seeds alone; they are not shown.

With {num_seeds} seeds an arm's own spread says little. So one standard deviation s is taken for all arms of an env,
pooled over their paired differences; intervals are +- t s / sqrt({num_seeds}), t with {freedom} degrees of freedom. All
differences share the baseline's runs, so they are correlated: a baseline that was lucky shifts all of them together.
The smallest effect is what such intervals find with probability 0.8. There are {comparisons} comparisons; an arm is
called above or below `{baseline}` only if its interval at level 1 - 0.05 / {comparisons} leaves out 0.

## How tokens are counted

The budget counts `cost/tokens_generated` plus `cost/tokens_prefilled` of every train step: each token that was sampled,
and each token of a context that was computed to sample from it. What a context shares with a sequence whose keys and
values are still held is not counted again. Evaluations, the warm start, the computation of updates, and scores of a
reference or a critic are not counted. A run stops after the first step at which its budget is spent.

## What it does not show

- One model of about 0.1 to 0.5 million parameters on two easy envs for a few minutes: nothing about language models.
- All arms of an env have one learning rate and one group size, chosen for `{baseline}` on a pilot seed. A rate of its
  own might serve each better; a recipe that is worse here may only be slower at this rate.
- Recipes differ in several choices at once (filter, clip, aggregation, search, credit): a difference is the recipe's,
  not its credit's alone.

To repeat it:

```bash
python benchmarks/methods.py run --jobs 2     # goes on where it stopped
python benchmarks/methods.py report
```
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
        figure=figure.name,
        reading=(EXAMPLES / "reading.md").read_text(encoding="utf-8").rstrip(),
        results="\n".join(line for of in found.values() for line in _section(of, declared, comparisons)).rstrip(),
        seeds=", ".join(map(str, declared.seeds)),
        pilots=", ".join(map(str, declared.pilot_seeds)),
        freedom=len(declared.compared) * (len(declared.seeds) - 1),
        comparisons=comparisons,
    )
    page.write_text(text, encoding="utf-8")


def _section(of: Results, declared: Declaration, comparisons: int) -> Iterator[str]:
    effect, budget = declared.games[of.game].minimum_detectable_effect, declared.games[of.game].budget
    assert effect is not None, "checked before"
    plain, strict = (pooled_intervals(differences(of), level=level) for level in (LEVEL, 1 - 0.05 / comparisons))
    told = {
        "above": [arm for arm, mean in strict.items() if mean.low > 0],
        "below": [arm for arm, mean in strict.items() if mean.high < 0],
    }
    yield from (f"## {of.game}", "", f"{budget:,} tokens for each run.", "")
    if len(of.seeds) < len(declared.seeds):
        yield from (f"**Only {len(of.seeds)} of the {len(declared.seeds)} declared seeds are complete.**", "")
    yield from (_verdict(told, of.baseline), "")
    yield "| arm | success | by seed | difference | mean success in training | steps | tokens | seconds |"
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
        f"Declared as the smallest difference that the seeds can show: {100 * effect:.1f} points. By the spread of the "
        f"declared seeds themselves it is {100 * seen:.1f}.",
        "",
    )


def _verdict(told: Mapping[str, Sequence[str]], baseline: str) -> str:
    """Return in words which arms can be told from the baseline."""
    parts = [f"{side} `{baseline}`: {', '.join(f'`{arm}`' for arm in arms)}" for side, arms in told.items() if arms]
    return f"Told apart, {'; '.join(parts)}." if parts else f"No arm can be told from `{baseline}`."


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in values)


def _points(mean: Mean) -> str:
    return f"{100 * mean.value:+.1f} [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]"
