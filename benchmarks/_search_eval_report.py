"""Report of benchmarks/search_eval.py: docs/results/search_eval.md."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks._search_eval_arms import CHAIN, Bench
from benchmarks._studies import check_declared
from envgym.errors import RunError, sentence
from envgym.runs import RunDirectory, read_object
from envgym.stats import PairedComparison

PAGE = """\
# Searches against chains, at an equal token budget

**Question.** With an equal number of generated tokens per task, does a search at test time answer better than
single episodes (`chain`)?

**Answer.** On easy problems with a tiny model:

{findings}

| what answers | success | difference to `chain` | p | tokens | prefilled | env steps | value reads |
|---|---|---|---|---|---|---|---|
{table}

Success is in percent, differences are in points, with 95 % intervals paired by task; differences to
`chain` are paired by task. p is that of a two-sided sign-flip test, multiplied by the {num_compared} declared
comparisons: {compared}.

Tokens and steps are means per task of the whole search. Every search except `chain` prefers complete episodes: an
episode that reached the budget is chosen only if there is no other, and short episodes are more likely to be
complete. The **oracle-selected** row uses the reward, which is not available at test time: it is an upper bound for
any selection among such episodes, not a result.

## How it was run

```bash
{commands}
```

`python benchmarks/search_eval.py run` runs all of them, and `python benchmarks/search_eval.py report` writes this
page.

- **Tasks.** {tasks} held-out problems of `math/arithmetic-v0` (two operations, with a calculator).
- **Budget.** {budget} generated tokens per task, which is about {samples} episodes. `chain` spends them on
  {samples} independent episodes and reports their mean success. The others spend them on one search that gives one
  answer.
- **Value.** `envgym value` sampled {episodes} episodes of the policy on train tasks, and fitted a copy of the model
  with a value head to their returns. It explains {explained:.0f} % of the variance of the returns on train tasks that
  were held back from the fit. Tokens that the value reads are in a separate column and do not count towards the
  budget.
- **Seed.** {seed}, one policy and one value.
- **Declared in advance.** Policy, value, seed, tasks, budget, searches and the minimum detectable effect were
  committed in `examples/search_eval/` before any search was run on the held-out tasks.
- **Minimum detectable effect** (80 % power) for {tasks} tasks at the corrected level: {effect:.1f} points, from the
  largest standard deviation of paired differences ({pilot_arms}) in a pilot on {pilot_tasks} train tasks with
  another sampling seed.
- **Choice of settings.** Policy and value were trained on train tasks only, and their settings were chosen after a
  few trials there. After the first pilot, `best_of` was changed: with eight episodes started together, this budget
  was spent on their first turns, and none was completed. The training command evaluates the warm start on the first
  10 held-out tasks, which was not used to choose anything. No reward of a held-out task was used to guide a search
  or to select an answer, except in the oracle-selected row.

## Limits

- One policy and one value, with one seed each: the intervals are over tasks, not over training runs. The value was
  fitted to few episodes, and its settings were not optimised.
- A model of 0.5 million parameters on easy problems of about two turns. In such shallow trees a search has few
  decisions to make. The results say nothing about long episodes or language models.
- The budget counts generated tokens only.
- A later version of `mcts` counts turns that repeat a child against `widening`; the runs above are of the one before.
- The declaration is older than these numbers. All searches were measured again, with the same settings and seeds,
  after changes to the warm start, to the selection of an answer, and to the tasks on which a value is measured. The
  minimum detectable effect is that of the pilot of the first measurement, whose policy solved 40.0 % in single
  episodes.
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
    rows: list[str] = []
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
    """Return one line per declared comparison with its result."""
    lines = []
    for name in bench.declared.compared:
        of = bench.compared(name, is_pilot=False)
        points = 100 * of.difference.value
        if corrected(bench, of) < bench.declared.level:
            verdict = f"{'better' if points > 0 else 'worse'} than `chain`, by {abs(points):.1f} points"
        else:
            verdict = f"no significant difference from `chain` at the corrected level ({points:+.1f} points)"
        lines.append(
            f"- {bench.arms[name].what}: {verdict}; {of.wins} tasks better, {of.losses} worse, {of.ties} unchanged."
        )
    return lines
