"""Report of the cells of benchmarks/tree_vs_chain.py: docs/results/tree_vs_chain.md and its figure."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks._curves import CurvePoint, Curves, plot
from benchmarks._studies import Mean, check_declared, minimum_detectable_effect, pooled_spread, t_interval
from benchmarks._tree_vs_chain_cells import WARM_START, CellPaths, Declaration
from envgym.errors import RunError, sentence
from envgym.stats import sign_flip_p_value

PAGE = """\
# Trees and turns against chains, at equal counted tokens

**Question.** With an equal number of tokens, does training on trees (`tree_grpo`) or with turn-level credit
(`turn_grpo`) end above `grpo` on games of several turns?

**Answer.** By 95 % intervals, not corrected for the {comparisons} comparisons:

{answer}

![Held-out success over tokens spent]({figure})

Lines are means over seeds; bands are 95 % intervals of Student's t over seeds.

{results}

## How it was run

```bash
python benchmarks/tree_vs_chain.py run --jobs 2     # continues an interrupted study
python benchmarks/tree_vs_chain.py report
```

- **Recipes**, with their default settings: `grpo`; `tree_grpo`, which samples two trees of three leaves per task
  instead of six chains; and `turn_grpo`, which assigns credit to each turn.
- **Runs.** For each seed, all three start from the same warm-started weights, are evaluated on the same tasks, and
  train until they have spent the same number of tokens.
- **Metric.** Success on the same {tasks} held-out tasks after the whole budget, one episode each at temperature 1.
- **Seeds.** {seeds}. Settings were tried on the pilot seeds {pilots} only, which are not shown.
- **Declared in advance.** The settings of each game, the seeds, the budgets, the metric and the minimum detectable
  effect were committed in `examples/tree_vs_chain/` before any declared seed was run.
- **Minimum detectable effect** (80 % power): the mean paired difference that eight seeds detect with probability
  0.8 at a level of 0.05, (t + t') s / sqrt(8), where s is the standard deviation of the paired differences of the
  pilot seeds. {num_pilots} pilot seeds with two differences each estimate s only roughly; the intervals above use
  the declared seeds alone.
- **Multiple comparisons.** The p-values are not corrected. To be significant at 0.05 among all {comparisons}
  comparisons, a p-value must be at most {corrected:.4f}.

## How tokens are counted

The budget counts `cost/tokens_generated` plus `cost/tokens_prefilled` of every train step, as `envgym train`
records them: each sampled token, and each context token that was computed in order to sample from it. A prefix is
not counted again while its keys and values are still in the cache; this applies to earlier turns, samples of one
task and branches of a tree. Evaluations, the warm start and the computation of updates are not counted. A run stops
after the first step at which its budget is spent.

## Limits

- One model of about 0.1 million parameters, two easy games, and a minute of training per run. The results say
  nothing about language models or a larger budget.
- All recipes of a game use one learning rate, chosen in a few runs on the first pilot seed. Another rate might be
  better for each recipe.
- The recipes differ in more than their credit: `turn_grpo` uses the plain policy gradient, summed over tokens, and
  keeps all groups; the other two clip, average over tokens, and drop groups with zero reward variance.
- Both games give a reward per turn (`turn_reward`); `grpo` and `tree_grpo` only use the sum of an episode.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The cells of one game, of the seeds at which every recipe is through."""

    game: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: Mapping[tuple[int, str], Mapping[str, Any]]

    def success(self, recipe: str, point: int) -> list[float]:
        """Return held-out success by seed; point 0 is the warm start, -1 the whole budget."""
        return [float(self.curve(seed, recipe)[point]["success"]) for seed in self.seeds]

    def curve(self, seed: int, recipe: str) -> list[Mapping[str, float]]:
        """Return the points of one cell, after that of its warm start."""
        return [*self.cells[seed, WARM_START]["points"], *self.cells[seed, recipe]["points"]]

    def area(self, recipe: str) -> list[float]:
        """Return the mean success over the points after the warm start, by seed."""
        return [fmean(point["success"] for point in self.curve(seed, recipe)[1:]) for seed in self.seeds]

    def total(self, recipe: str, name: str) -> float:
        """Return a metric's mean over seeds."""
        return fmean(self.cells[seed, recipe]["metrics"][name] for seed in self.seeds)


def results(root: Path, declared: Declaration, game: str, seeds: Sequence[int]) -> Results:
    """Read what is there of one game."""
    names = (WARM_START, *declared.recipes)
    cells = {
        (seed, name): json.loads(path.read_text(encoding="utf-8"))
        for seed in seeds
        for name in names
        if (path := CellPaths(game=game, seed=seed, root=root).cell(name)).exists()
    }
    whole = tuple(seed for seed in seeds if all((seed, name) in cells for name in names))
    return Results(game=game, recipes=declared.recipes, seeds=whole, cells=cells)


def differences(of: Results, arm: str, baseline: str, *, area: bool = False) -> list[float]:
    """Return the paired differences, seed by seed."""
    after, before = (of.area(name) if area else of.success(name, -1) for name in (arm, baseline))
    return [one - other for one, other in zip(after, before, strict=True)]


def planned_effect(pilot: Results, declared: Declaration) -> float:
    """Return the difference that the declared seeds can show, by the spread of the pilot seeds' differences."""
    pairs = [differences(pilot, arm, declared.baseline) for arm in declared.arms]
    return minimum_detectable_effect(pooled_spread(pairs), len(declared.seeds))


def write_report(root: Path, declared: Declaration, page: Path) -> None:
    """Write the page and, beside it, its figure. Raises: RunError: no seed is through."""
    by_game = {game: results(root, declared, game, declared.seeds) for game in declared.games}
    by_game = {game: of for game, of in by_game.items() if of.seeds}
    if not by_game:
        do = "run the benchmark with `run` first"
        raise RunError(sentence("results", "hold a seed that is through", "none", where=str(root), do=do))
    check_declared(declared.minimum_detectable_effects(by_game))
    figure = page.with_suffix(".svg")
    figure.write_text(plot({of.game: curves(of) for of in by_game.values()}, axis="thousand tokens"), encoding="utf-8")
    lines = [line for of in by_game.values() for line in _section(of, declared)]
    text = PAGE.format(
        answer="\n".join(f"- `{game}`: {_verdicts(of, declared)}" for game, of in by_game.items()),
        figure=figure.name,
        results="\n".join(lines).rstrip(),
        seeds=_listed(declared.seeds),
        pilots=_listed(declared.pilot_seeds),
        num_pilots=len(declared.pilot_seeds),
        tasks=declared.tasks,
        comparisons=(comparisons := len(declared.arms) * len(declared.games)),
        corrected=0.05 / comparisons,
    )
    page.write_text(text, encoding="utf-8")


def curves(of: Results) -> Curves:
    """Return each recipe's learning curve with its intervals over seeds."""
    return {
        recipe: [
            CurvePoint(point["budget"] / 1000, t_interval(of.success(recipe, number)))
            for number, point in enumerate(of.curve(of.seeds[0], recipe))
        ]
        for recipe in of.recipes
    }


def _section(of: Results, declared: Declaration) -> Iterator[str]:
    yield from (f"## `puzzles/{of.game}-v0`", "")
    if len(of.seeds) < len(declared.seeds):
        yield from (f"**Only {len(of.seeds)} of the {len(declared.seeds)} declared seeds are complete.**", "")
    yield from _final(of, declared)
    yield from _curve(of)
    yield from _seeds(of)
    yield from _spent(of)


def _verdicts(of: Results, declared: Declaration) -> str:
    return " ".join(
        _verdict(arm, t_interval(differences(of, arm, declared.baseline)), declared) for arm in declared.arms
    )


def _verdict(arm: str, difference: Mean, declared: Declaration) -> str:
    """Return an interval in words."""
    if difference.low > 0:
        text = f"ends above `{declared.baseline}`"
    elif difference.high < 0:
        text = f"ends below `{declared.baseline}`"
    else:
        text = f"does not differ significantly from `{declared.baseline}`"
    return f"`{arm}` {text}: {_points(difference)} points."


def _final(of: Results, declared: Declaration) -> Iterator[str]:
    effect = declared.games[of.game].minimum_detectable_effect
    assert effect is not None, "checked before"
    yield f"After the whole budget; differences to `{declared.baseline}` are paired by seed, in points:"
    yield ""
    yield "| recipe | success | difference | p, sign flips | difference of the curve's mean |"
    yield "|---|---|---|---|---|"
    yield f"| warm start | {_share(t_interval(of.success(of.recipes[0], 0)))} | | | |"
    for recipe in of.recipes:
        cells = [f"`{recipe}`", _share(t_interval(of.success(recipe, -1))), "", "", ""]
        if recipe != declared.baseline:
            final = differences(of, recipe, declared.baseline)
            value, _ = sign_flip_p_value(np.array(final), rng=np.random.default_rng(0))
            area = t_interval(differences(of, recipe, declared.baseline, area=True))
            cells[2:] = [_points(t_interval(final)), f"{value:.3f}", _points(area)]
        yield f"| {' | '.join(cells)} |"
    text = f"Minimum detectable effect (80 % power): {100 * effect:.1f} points, as declared from the pilot seeds."
    if len(of.seeds) > 1:
        spread = pooled_spread([differences(of, arm, declared.baseline) for arm in declared.arms])
        seen = minimum_detectable_effect(spread, len(of.seeds))
        text += f" With the standard deviation of the declared seeds it is {100 * seen:.1f}."
    yield from ("", text, "")


def _curve(of: Results) -> Iterator[str]:
    points = of.curve(of.seeds[0], of.recipes[0])
    yield "Learning curves:"
    yield ""
    heads = [f"{point['budget'] / 1000:g}k tokens" for point in points]
    yield f"| recipe | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(points)}"
    for recipe in of.recipes:
        means = [_share(t_interval(of.success(recipe, number))) for number in range(len(points))]
        yield f"| `{recipe}` | {' | '.join(means)} |"
    yield ""


def _seeds(of: Results) -> Iterator[str]:
    yield "Success by seed, after the whole budget:"
    yield ""
    yield f"| seed | warm start | {' | '.join(f'`{recipe}`' for recipe in of.recipes)} |"
    yield f"|---|---|{'---|' * len(of.recipes)}"
    for number, seed in enumerate(of.seeds):
        shares = [of.success(of.recipes[0], 0)[number], *(of.success(recipe, -1)[number] for recipe in of.recipes)]
        yield f"| {seed} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |"
    yield ""


def _spent(of: Results) -> Iterator[str]:
    yield "Tokens, steps and processor time of a run, means over seeds:"
    yield ""
    yield "| recipe | tokens | of them generated | steps | episodes | rows trained | CPU s |"
    yield "|---|---|---|---|---|---|---|"
    for recipe in of.recipes:
        generated, prefilled, steps, episodes, rows = (
            of.total(recipe, name) for name in ("tokens_generated", "tokens_prefilled", "steps", "episodes", "rows")
        )
        cpu = fmean(of.cells[seed, recipe]["cpu_s"] for seed in of.seeds)
        yield (
            f"| `{recipe}` | {generated + prefilled:,.0f} | {generated:,.0f} | {steps:.0f} | {episodes:,.0f} | "
            f"{rows:,.0f} | {cpu:.0f} |"
        )
    yield ""


def _share(mean: Mean) -> str:
    return f"{100 * mean.value:.1f} %" + _ends(mean, ".1f")


def _points(mean: Mean) -> str:
    return f"{100 * mean.value:+.1f}" + _ends(mean, "+.1f")


def _ends(mean: Mean, form: str) -> str:
    """Return the interval; one seed has none."""
    return f" [{100 * mean.low:{form}}, {100 * mean.high:{form}}]" if math.isfinite(mean.low) else ""


def _listed(seeds: Sequence[int]) -> str:
    return f"{', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"
