"""Report of benchmarks/search_eval.py: docs/results/search_eval.md."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks._search_eval_arms import CHAIN, Bench
from benchmarks._studies import check_declared
from envgym.errors import RunError, sentence
from envgym.runs import RunDirectory, read_object
from envgym.stats import PairedComparison

PAGE = """\
# Searches against chains, at an equal counted budget

A tiny model answers {tasks} held-out problems of `math/arithmetic-v0` (two operations, with a calculator). It may
generate {budget} tokens for each, which is about {samples} episodes. `chain` spends them on {samples} independent
episodes and counts their mean success: nothing is chosen. The others spend them on a search that gives one answer.

{table}

Success and differences are in percent and points, with 95 % intervals by bootstrap over tasks; differences to `chain`
are paired by task. p is of a two-sided sign-flip test, times the {num_compared} comparisons that were declared:
{compared}.
Every search but `chain` is selected by ending: an episode that the budget cut is chosen only where no other is left,
and short episodes are likelier to come to an end. Tokens and steps are means per task of the whole search. The
**oracle-selected** row knows the reward, which nobody does at test time: it is a bound for what a choice among such
episodes can reach, not a result.

{findings}

## The value

`envgym value` sampled {episodes} episodes of the policy on train tasks and fitted a copy of the model, with a value
head, to what they earned. On train tasks that it did not learn from, it explains {explained:.0f} % of the variance of
the returns. No reward of a held-out task was looked at to lead or to choose, but in the oracle-selected row. Tokens
that the value reads are in a column of their own and no part of the budget.

## What was declared beforehand

`examples/search_eval/` was committed before an arm was run on the held-out tasks: policy, value, seed {seed}, tasks,
budget, arms, and the smallest effect that {tasks} tasks show with probability 0.8 at the corrected level:
{effect:.1f} points, by the largest spread of paired differences ({pilot_arms}) in a pilot of {pilot_tasks} train tasks
with another seed of sampling. Policy and value learned from train tasks alone, and their settings were taken after a
few trials there. The first pilot led to a change of `best_of`: with eight episodes begun together this budget went into
their first turns, and none came to its end. The training command evaluates the warm start on the first 10 held-out
tasks, which decided nothing.

## What it does not show

- One policy and one value, of one seed each: the intervals are over tasks, not over training runs. The value learned
  from few episodes, and its settings were not searched for.
- A model of 0.5 million parameters on easy problems of about two turns. Trees of so little depth leave a search little
  to lead; nothing here says what happens in long episodes or with a language model.
- The budget counts generated tokens alone.
- The declaration is older than these numbers: all arms were measured again, with the same settings and seeds, after
  changes to the warm start, to how an answer is chosen, and to the tasks on which a value is measured. The smallest
  effect is of the pilot of the first measurement, whose policy solved 40.0 % in single episodes.

To repeat it:

```bash
{commands}
```

`python benchmarks/search_eval.py run` runs them all, and `python benchmarks/search_eval.py report` writes this page.
"""


def write_report(bench: Bench, page: Path) -> None:
    """Write the page. Raises: RunError: an arm is not through. SettingsError: nothing was declared."""
    check_declared({"held-out tasks": bench.declared.minimum_detectable_effect})
    missing = [name for name in bench.arms if bench.record(name, is_pilot=False) is None]
    if missing:
        do = "run the benchmark with `run` first"
        raise RunError(sentence("results", "hold every arm", f"none of {missing}", where=str(bench.root), do=do))
    declared = bench.declared
    fit = RunDirectory.open(bench.value).metrics()[-1]
    commands = [*bench.training(), *(bench.evaluation(name, is_pilot=False) for name in bench.arms)]
    page.write_text(
        PAGE.format(
            tasks=declared.tasks,
            budget=declared.budget,
            samples=declared.samples,
            table="\n".join(_table(bench)),
            num_compared=len(declared.compared),
            compared=", ".join(bench.arms[name].what for name in declared.compared),
            findings="\n".join(_findings(bench)),
            episodes=declared.value.episodes,
            explained=100 * fit.get("critic/explained_variance", 0.0),
            seed=declared.seed,
            effect=100 * (declared.minimum_detectable_effect or 0.0),
            pilot_tasks=declared.pilot.tasks,
            pilot_arms=", ".join(declared.pilot.arms),
            commands="\n".join(" ".join(["envgym", *command]) for command in commands),
        ),
        encoding="utf-8",
    )


def _table(bench: Bench) -> list[str]:
    rows = [
        "| what answers | success | difference to `chain` | p | tokens | prefilled | env steps | value reads |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, arm in bench.arms.items():
        record = bench.record(name, is_pilot=False)
        assert record is not None
        of = bench.compared(name, is_pilot=False)
        ends = of.difference.interval
        interval = f"[{100 * ends.low:+.1f}, {100 * ends.high:+.1f}]"
        difference = "" if name == CHAIN else f"{100 * of.difference.value:+.1f} {interval}"
        p = f"{corrected(bench, of):.4f}" if name in bench.declared.compared else ""
        size = bench.declared.samples if name == CHAIN else 1
        costs: Mapping[str, float] = {key: cost * size for key, cost in record.costs.items()}
        reads = read_object(bench.directory(name, is_pilot=False) / "reads.json")["tokens_read"] / len(record.rewards)
        rows.append(
            f"| {arm.what} | {100 * of.mean_after:.1f} | {difference} | {p} | {costs['tokens_generated']:.0f} "
            f"| {costs['tokens_prefilled']:.0f} | {costs['env_steps']:.1f} | {reads:.0f} |"
        )
    return rows


def corrected(bench: Bench, of: PairedComparison) -> float:
    """Return a p-value times the number of comparisons (Bonferroni)."""
    return min(1.0, of.p_value * len(bench.declared.compared))


def _findings(bench: Bench) -> list[str]:
    """Say of each declared comparison what it shows."""
    lines = []
    for name in bench.declared.compared:
        of = bench.compared(name, is_pilot=False)
        points = 100 * of.difference.value
        if corrected(bench, of) < bench.declared.level:
            verdict = f"{'better' if points > 0 else 'worse'} than `chain`, by {abs(points):.1f} points"
        else:
            verdict = f"not told apart from `chain` at the corrected level ({points:+.1f} points)"
        lines.append(
            f"- {bench.arms[name].what}: {verdict}; {of.wins} tasks better, {of.losses} worse, {of.ties} alike."
        )
    return lines
