"""The page of benchmarks/environments.py: what training and search gave, and how it was run."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from benchmarks._tables import table
from envgym.files import write_atomic
from envgym.runs import RunDirectory
from envgym.stats import PairedComparison, correct_by_holm
from envgym.wall_time import read_wall_time

if TYPE_CHECKING:
    from benchmarks.environments import Study

TEXT = """\
# Training on proofs, function calls and NP-hard problems

**Question.** Do small models learn these environments, that is, do they solve more held-out tasks after training than
before; and does a search that goes back to earlier states of proofs find more of them than independent episodes do at
an equal budget?

**Answer.** {answer}

{trained}
Success is the share of held-out tasks solved, in percent; changes and differences are in points, paired by task, with
95 % intervals. *Before* is after the warm start on oracle episodes, and *after* is after all train steps, so the
change is what reinforcement learning added. p is that of a two-sided sign-flip test, alone and corrected for all runs
of the table (Holm). *Detectable* is the minimum detectable effect (80 % power), declared from a pilot with another seed
where the declaration does not say otherwise.

`bfcl_graded.yaml` and `bfcl_again.yaml` train with one method and two seeds. Their two p-values together (Stouffer)
give p = {together}. This test was not declared, and it is approximate, as the runs share held-out tasks.

## Search over proofs

{searched}
{search_answer}

With the policy trained above, on the same {tasks} held-out theorems, every search may generate {budget} tokens on each.
`best_of` plays independent episodes until they are spent, and has proved the theorem if one of them
has. `mcts` plays one, then goes back to the states of unfinished proofs, one tactic at a time, led by what Coq has
shown (`examples/environments/proof_progress.py`). A proof that Coq has accepted is a proof, so choosing it by its
reward is what a solver may do here. `chain` is the mean success of {samples} single episodes, for comparison. Tokens
and tactics are means per theorem, of all episodes together.

## A few steps on the others

{few}
Two train steps of SmolLM2-135M, without a warm start, of 8 episodes each. They show that messages, rewards and updates
meet; they are no result about learning. Invalid: share of invalid episodes in training.

## How it was run

```bash
python -m benchmarks.environments pilot
python -m benchmarks.environments run
python -m benchmarks.environments report
```

The searches:

```text
{commands}
```

- **Declared in advance.** Settings, seeds, tasks, budgets, searches and minimum detectable effects were committed in
  `examples/environments/` before the declared runs. Pilots with another seed found the settings of np and proofs, and
  those of `mcts` among a few variants on train tasks; the pilot of bfcl_graded was stopped after six steps; bfcl and
  bfcl_again had none.
- **Seed.** {seed}, and 1 for bfcl_again: one run for each settings file. The intervals cover other tasks of the same
  source, not other seeds.
- **Logs.** [environments.jsonl](environments.jsonl) has the rewards of every held-out task, and for training what each
  step paid, by run.
- **Success** is a proved theorem, an optimal packing, and the right call.
- **Cost.** {cost}

## Limits

Small models and the easiest tasks of each environment. One seed for each file. `bfcl_graded.yaml` was declared after
`bfcl.yaml` had shown no clear change, and `bfcl_again.yaml` after `bfcl_graded.yaml`, to see whether its change holds:
with another seed, more steps, all held-out tasks, and four samples of each. The comparison of searches is at one budget
and with one policy; the settings of `mcts` were chosen on the train tasks of the pilot's policy.
"""


def write_page(study: "Study", path: Path) -> None:
    """Write the page."""
    declared = study.declared
    changes = {name: change for name in declared.trained if (change := study.change(name)) is not None}
    corrected = correct_by_holm([change.p_value for change in changes.values()])
    p_values = {name: step.p_value for name, step in zip(changes, corrected, strict=True)}
    search = declared.search
    arms = ["chain", *search.arms]
    gains = {arm: gain for arm in search.arms if arm != search.baseline and (gain := study.gain(arm)) is not None}
    text = TEXT.format(
        answer=" ".join(_sentence(name, change, p_values[name]) for name, change in changes.items()),
        together=_together([changes.get(name) for name in SAME_METHOD]),
        trained="".join(
            table(TRAINED_HEAD, [_trained_row(study, name, change, p_values[name]) for name, change in changes.items()])
        ),
        searched="".join(table(SEARCH_HEAD, [_search_row(study, arm, gains.get(arm)) for arm in arms])),
        search_answer=" ".join(_search_sentence(study, arm, gain) for arm, gain in gains.items()),
        budget=f"{declared.search.budget:,}",
        samples=declared.search.samples,
        tasks=declared.search.tasks,
        few="".join(table(FEW_HEAD, [_few_row(study, env_id) for env_id in declared.few_steps])),
        commands="\n".join(search_line(study, arm) for arm in arms),
        seed=declared.seed,
        cost=", ".join(f"{name}: {_minutes(study, name)} minutes" for name in changes) + ", on a shared machine.",
    )
    write_atomic(path, text)
    runs = [*changes, *(f"search-{arm}" for arm in arms)]
    write_atomic(path.with_suffix(".jsonl"), "".join(f"{json.dumps(_log(study, name))}\n" for name in runs))


SAME_METHOD = ("bfcl_graded", "bfcl_again")
"""Runs that differ in seed, steps and samples only."""
LOGGED = (
    "step",
    "train/success",
    "reward/mean",
    "filter/kept",
    "loss/entropy",
    "logprob_gap/mean_abs",
    "rollout/invalid",
)
"""Metrics of a train step that are kept beside the page."""


def _log(study: "Study", name: str) -> dict[str, object]:
    """Return what a run paid, task by task and step by step."""
    metrics = [row for row in RunDirectory.open(study.directory(name)).metrics() if row["step"]]
    steps = [{key: row[key] for key in LOGGED if key in row} for row in metrics]
    return {"run": name, "evaluations": [record.to_json() for record in study.records(name)], "steps": steps}


TRAINED_HEAD = ["settings", "environment", "tasks", "before", "after", "change", "p", "p, Holm", "detectable"]
SEARCH_HEAD = ["search", "success", "difference to `best_of`", "p", "tokens", "tactics"]
FEW_HEAD = ["environment", "episodes", "mean reward in training", "invalid", "held-out, before", "after"]


def _trained_row(study: "Study", name: str, change: PairedComparison, corrected: float) -> list[str]:
    (record, *_) = study.records(name)
    effect = study.declared.trained[name].minimum_detectable_effect
    return [
        f"`{name}.yaml`",
        f"`{record.env_id}`",
        str(change.num_tasks),
        f"{100 * change.mean_before:.1f}",
        f"{100 * change.mean_after:.1f}",
        _points(change),
        f"{change.p_value:.2g}",
        f"{corrected:.2g}",
        f"{100 * (effect or 0):.1f}",
    ]


def _search_row(study: "Study", arm: str, gain: PairedComparison | None) -> list[str]:
    (record, *_) = study.records(f"search-{arm}")
    shares = [
        sum(reward is not None and reward >= record.success_at for reward in of) / len(of)
        for of in record.rewards.values()
    ]
    compared = [_points(gain), f"{gain.p_value:.2g}"] if gain else ["", ""]
    samples = len(next(iter(record.rewards.values())))
    costs = [f"{samples * record.costs[name]:,.0f}" for name in ("tokens_generated", "env_steps")]
    return [f"`{arm}`", f"{100 * sum(shares) / len(shares):.1f}", *compared, *costs]


def _few_row(study: "Study", env_id: str) -> list[str]:
    run = RunDirectory.open(study.directory(env_id))
    steps = [row for row in run.metrics() if row["step"]]
    before, after = study.records(env_id)[0], study.records(env_id)[-1]
    return [
        f"`{env_id}`",
        f"{sum(row['rollout/episodes'] for row in steps):.0f}",
        ", ".join(f"{row['reward/mean']:.3f}" for row in steps),
        ", ".join(f"{row['rollout/invalid']:.2f}" for row in steps),
        *(
            f"{sum(filter(None, (r for of in record.rewards.values() for r in of))) / len(record.rewards):.3f}"
            for record in (before, after)
        ),
    ]


def _sentence(name: str, change: PairedComparison, corrected: float) -> str:
    interval = change.difference.interval
    verdict = "learned" if interval.low > 0 else "got worse" if interval.high < 0 else "shows no clear change"
    if corrected > 0.05 and verdict != "shows no clear change":
        verdict = f"{verdict} by its own interval, not after the correction for all runs"
    before, after = (f"{100 * value:.1f} %" for value in (change.mean_before, change.mean_after))
    return f"`{name}.yaml` {verdict}: {before} to {after} of {change.num_tasks} held-out tasks."


def _together(changes: Sequence[PairedComparison | None]) -> str:
    """Return the two-sided p-value of several comparisons by Stouffer's sum of z; `not known` where one is missing."""
    normal, scores = NormalDist(), list[float]()
    for change in changes:
        if change is None:
            return "not known"
        scores.append(math.copysign(normal.inv_cdf(1 - change.p_value / 2), change.difference.value))
    return f"{2 * (1 - normal.cdf(abs(sum(scores)) / len(scores) ** 0.5)):.2g}"


def _search_sentence(study: "Study", arm: str, gain: PairedComparison) -> str:
    declared = study.declared.search
    interval = gain.difference.interval
    differs = "is better than" if interval.low > 0 else "is worse than"
    verdict = differs if interval.low > 0 or interval.high < 0 else "does not differ significantly from"
    effect = f"minimum detectable effect {100 * (declared.minimum_detectable_effect or 0):.1f} points"
    return f"`{arm}` {verdict} `{declared.baseline}`: {_points(gain)} points ({effect})."


def _points(paired: PairedComparison) -> str:
    value, interval = paired.difference.value, paired.difference.interval
    return f"{100 * value:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def search_line(study: "Study", arm: str) -> str:
    """Return the command of a search as the page shows it."""
    return " ".join(study.search_command(arm)).replace(f"{study.root}", "runs/environments")


def _minutes(study: "Study", name: str) -> int:
    return round(sum(process.seconds for process in read_wall_time(study.directory(name))) / 60)
