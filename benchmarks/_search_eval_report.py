"""The page of benchmarks/search_eval.py: success over compute, compared by task."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import variance
from typing import Any

from benchmarks._curves import CurvePoint, Curves, plot
from benchmarks._search_eval_cells import CHAIN, EXAMPLES, Bench, Cell, pilot_differences
from benchmarks._studies import Mean, check_declared, points, share
from benchmarks._tables import table
from envgym.agents.evaluation.play import EvalRecord
from envgym.errors import RunError, sentence
from envgym.files import write_atomic
from envgym.stats import HolmStep, PairedComparison, correct_by_holm, minimum_detectable_effect

PAGE = """\
# Which search at evaluation?

**Question.** At equal generated tokens, and led by the same learned value, does a search that goes back into episodes
(`beam`, `mcts`) solve more held-out tasks than independent episodes of which one is chosen (`best_of`)?

**Answer.** At {most} times the tokens of an episode:

{findings}

![Held-out success over generated tokens, in episodes]({figure})

Lines are success at 1, 2, 4 and 8 times the tokens of a mean episode; bands are 95 % intervals over tasks. `chain` is
the mean of single episodes, which more tokens do not change.

## Reading

{reading}
{games}
Success is the share of held-out tasks, in percent, with 95 % intervals over tasks. *Tokens*, *prefilled* tokens, *env
steps* and tokens that the value reads (*value reads*) are means per task of the whole search, at the largest budget.
Every search prefers complete episodes: one that reached the budget is chosen only if there is no other, and short
episodes are more likely to be complete, so all results are *selected by ending*. The **oracle-selected** rows use the
reward, which is not available at test time: upper bounds, not results.

## How it was run

```bash
python -m benchmarks.search_eval pilot
python -m benchmarks.search_eval run
python -m benchmarks.search_eval report
```

- **Tasks.** {tasks} held-out tasks of each environment, the same for every search.
- **Budget.** Every search may generate 1, 2, 4 or 8 times the tokens of a mean episode, as the pilot counted them, and
  ends the turns that are under way then. What is prefilled and what the value reads is listed and does not count.
- **Forks.** Branches of `beam` and `mcts` act in forks of the environment, so a search knows what its actions lead to
  before it answers. That is possible where an environment forks, as these do.
- **Value.** `envgym value` sampled episodes of the policy on train tasks and fitted a copy of the model with a value
  head to their returns. The explained variance is on train tasks that were held back from the fit.
- **Tests.** The pairs above at the largest budget: a sign-flip test, paired by task, corrected by Holm over all
  {comparisons} comparisons. Everything else on this page is not corrected.
- **Seed.** {seed}, one policy and one value per environment.
- **Declared in advance.** Policies, values, seed, tasks, budgets, searches, tests and minimum detectable effects (80 %
  power, uncorrected) were committed in `examples/search_eval/` before these searches were run on held-out tasks.
  Settings were chosen on train tasks; the training command evaluates each policy on 10 held-out ones, too, by which
  nothing of these was chosen.
- **Before.** An earlier study on 300 held-out tasks of arithmetic, most likely among these, had a policy that was
  trained less, and a value that explained 5 % of the variance. At four episodes' tokens majority vote (+7.2 points) and
  likelihood (+10.5) were better than single episodes, and `mcts` by that value was worse (-8.8).
- **Data.** [search_eval.jsonl](search_eval.jsonl) has the rewards by task, in the same order, and the costs of every
  search and budget.

## Limits

Models of half a million parameters and easy tasks of a few turns, with one policy and one value each: the intervals are
over tasks, not over training runs. Nothing is said about language models or long episodes.
"""

GAME = """\
## `{env}`

A single episode, sampled at temperature {temperature:g}, solves {success} % and generates {tokens:.0f} tokens; a
budget counts {budget} for it, as in the pilot. The value, fitted to {episodes:,} episodes, explains {explained:.0f} %
of the returns' variance on tasks held back from its fit. Minimum detectable effect of a pair: {effect:.1f} points.

"""


def planned_effect(bench: Bench, game: str) -> float:
    """Return the difference that the declared tasks can show, by the largest spread of the pilot's pairs."""
    spreads = [variance(pilot_differences(bench, game, pair)) for pair in bench.declared.compared]
    return minimum_detectable_effect(bench.declared.tasks, max(spreads))


def write_report(bench: Bench, page: Path) -> None:
    """Write the page. Raises: RunError: a cell is not finished. SettingsError: nothing was declared."""
    declared = bench.declared
    check_declared({game: of.minimum_detectable_effect for game, of in declared.games.items()})
    records = {cell: bench.record(cell) for game in declared.games for cell in bench.cells(game, is_pilot=False)}
    missing = [cell.name for cell, record in records.items() if record is None]
    if missing:
        must, got, do = "be finished", f"{len(missing)} that are not", "run the benchmark with `run` first"
        raise RunError(sentence("evaluations", must, got, where=missing[0], do=do))
    most = declared.factors[-1]
    pairs = [(game, ours, other) for game in declared.games for ours, other in declared.compared]
    compared = {
        (game, ours, other): bench.compared(
            Cell(game=game, arm=other, factor=most), Cell(game=game, arm=ours, factor=most)
        )
        for game, ours, other in pairs
    }
    corrected = dict(zip(pairs, correct_by_holm([compared[pair].p_value for pair in pairs]), strict=True))
    whole = {cell: record for cell, record in records.items() if record is not None}
    curves = {game: _curves(bench, game, whole) for game in declared.games}
    write_atomic(page.with_suffix(".svg"), plot(curves, axis="episodes' worth of generated tokens"))
    lines = [json.dumps(_data(bench, cell, record)) for cell, record in whole.items()]
    write_atomic(page.with_suffix(".jsonl"), "".join(f"{line}\n" for line in lines))
    text = PAGE.format(
        most=most,
        findings="\n".join(_finding(*pair, compared[pair], corrected[pair]) for pair in pairs),
        reading=(EXAMPLES / "reading.md").read_text(encoding="utf-8"),
        figure=page.with_suffix(".svg").name,
        games="\n".join(_game(bench, game, whole) for game in declared.games),
        tasks=declared.tasks,
        comparisons=len(pairs),
        seed=declared.seed,
    )
    write_atomic(page, text)


def _data(bench: Bench, cell: Cell, record: EvalRecord) -> dict[str, Any]:
    """Return what the data file keeps; the tasks are the same in all cells, in the same order."""
    costs = {**record.costs, "value_reads": bench.reads(cell)}
    return {"cell": cell.name, "rewards": list(record.rewards.values()), "costs": costs}


def success_of(record: EvalRecord) -> Mean:
    """Return success with its interval over tasks."""
    found = record.success
    assert found is not None, "valid episodes"
    return Mean(found.value, found.interval.low, found.interval.high)


def _curves(bench: Bench, game: str, records: Mapping[Cell, EvalRecord]) -> Curves:
    factors, chain = bench.declared.factors, success_of(records[Cell(game=game, arm=CHAIN)])
    searches = {
        arm: [CurvePoint(f, success_of(records[Cell(game=game, arm=arm, factor=f)])) for f in factors]
        for arm in bench.declared.arms
    }
    return {CHAIN: [CurvePoint(f, chain) for f in factors], **searches}


def _game(bench: Bench, game: str, records: Mapping[Cell, EvalRecord]) -> str:
    declared, of = bench.declared, bench.declared.games[game]
    chain = records[Cell(game=game, arm=CHAIN)]
    head = ["search", *(f"{factor}x" for factor in declared.factors), "tokens", "prefilled", "env steps", "value reads"]
    rows: list[Sequence[str]] = []
    for arm, how in declared.arms.items():
        cells = [Cell(game=game, arm=arm, factor=factor) for factor in declared.factors]
        costs = records[cells[-1]].costs
        told = [f"{costs[key]:,.0f}" for key in ("tokens_generated", "tokens_prefilled", "env_steps")]
        name = f"`{arm}`, **oracle-selected**" if how.is_oracle else f"`{arm}`"
        rows.append(
            [name, *(share(success_of(records[cell])) for cell in cells), *told, f"{bench.reads(cells[-1]):,.0f}"]
        )
    section = GAME.format(
        env=chain.env_id,
        temperature=of.temperature,
        success=share(success_of(chain)),
        tokens=chain.costs["tokens_generated"],
        budget=of.chain_tokens,
        episodes=of.episodes,
        explained=100 * bench.explained(game),
        effect=100 * (of.minimum_detectable_effect or 0),
    )
    return section + "".join(table(head, rows))


def _finding(game: str, ours: str, other: str, paired: PairedComparison, step: HolmStep) -> str:
    interval = paired.difference.interval
    verdict = "better" if paired.difference.value > 0 else "worse"
    told = f"{verdict} than" if step.p_value <= 0.05 else "not significantly different from"
    difference = f"{points(Mean(paired.difference.value, interval.low, interval.high))} points"
    counts = f"{paired.wins} tasks better, {paired.losses} worse, {paired.ties} unchanged"
    return f"- `{game}`: `{ours}` is {told} `{other}`: {difference}, p = {step.p_value:.2g} after correction; {counts}."
