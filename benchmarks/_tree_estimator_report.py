"""The page of `benchmarks.tree_estimator`: its table, and what the rule chose."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks._tables import table
from envgym.files import write_atomic

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "tree_estimator.md"
CLEARLY_BIASED: Final = 5.0
"""Standard errors."""
HEAD: Final = """# An unbiased tree estimator

**Question.** How much signal does the gradient have, per counted turn, on [planned trees](../credit.md#planned-trees)
and on chains, with a critic and without?

**Answer.** {answer}

No language model is trained here. The task has ten turns and one reward at the end. At every turn a policy with a
logit of 0.5 chooses +1 or -1, which is added to the reward. Each of the first two turns also adds noise, +14 c or -14
c, of which nothing can be learned. The history shows all of it.

A figure is the square of the mean gradient's part along the true gradient, divided by the variance of a group's
gradient and by the mean number of its turns, relative to six chains with `rloo`; in brackets over the eight turns
after the noise only. The credits are those that train, in steps of 8 groups, from which the scale β and the variances
S are measured, each group by the others. {groups:,} groups for each figure, four times as many for the first row. In
the last column a turn of the first two costs ten.

## Signal to noise

"""
FOOT: Final = """
*Biased*: the mean gradient differs from the true one by more than five standard errors. Those without the word are
unbiased, as [enumeration](../credit.md#bias) shows, but `sibling` with `random_expand`, whose bias is small. A high
ratio of a biased estimator says that it repeats itself, not that it is right: a division by the standard deviation
gives the groups with little noise the most weight. Sampling errors of the figures are about 5 %.

- Without a critic, planned trees beat chains with and without noise, and a fitted scale β adds a fifth or more.
- The variances S, measured on the other groups of a step, are as good as known ones.
- A good critic on chains beats trees without one. Trees with the critic beat it where nothing is noise, and on the
  turns after the noise; over all turns, chains with a critic are better where there is noise.
- [Training](trees.md) shows a part of this: with noise, planned trees learn faster than chains before correction for
  many comparisons; without noise they do not, and a critic that learns from the same episodes does not help.
- Where trees branch decides most: `sibling` with `random_expand`, which branches anywhere, is worse than chains.

## Where to branch

`scripts/plan_trees.py RUN` reads trees that a run recorded, and prints settings of `planned`:

```bash
python scripts/plan_trees.py runs/pilot --leaves 8
```

With a perfect baseline the variance of the gradient is Σ_d A_d / n_d, where n_d is the number of nodes at turn d, A_d
= Σ_{t ≤ d} Φ_t (S_t(d) - S_t(d + 1)), Φ_t the mean squared score of turn t, and S_t(u) the variance of the return
from turn t on, given all before turn u. With the cost c_d of a turn, n_d is proportional to √(A_d / c_d), made
nondecreasing. Trees have whole numbers of children and an imperfect baseline, so the rule goes through all plans of
at most two levels and takes the one with the least predicted variance times cost. It predicts the baseline's error
from the same filter as the credit.

The allocation of nodes alone, printed first, is for a perfect baseline, such as a good critic's with `planned_gae`.
Without a critic it misleads: where noise comes first it says chains, whereas branching at the end of the noise is what
gives the siblings' baseline its worth.

From 36 pilot groups of three trees, whose turns of branching are drawn, it chose, of plans of at most 8 episodes:

"""


def write_report(result: Mapping[str, Any]) -> None:  # a JSON object
    """Write the page."""
    write_atomic(PAGE, "".join(lines(result)))


def lines(result: Mapping[str, Any]) -> Iterator[str]:  # a JSON object
    """Yield the page."""
    rows = result["rows"]
    yield HEAD.format(answer=answer(rows), groups=result["groups"])
    columns = [(c, label) for c in ("0.0", "0.5", "1.5") for label in ("",)] + [("1.5", "_early10")]
    heads = ["c = 0", "c = 0.5", "c = 1.5", "c = 1.5, early turns cost 10"]
    yield from table(
        ["", *heads], [[name, *(cell(row[c], label) for c, label in columns)] for name, row in rows.items()]
    )
    yield FOOT
    plans = result["plans"].items()
    yield from table(
        ["task", "trees", "turns of branching", "children"],
        [[_task(key), str(plan["trees"]), _list(plan["turns"]), _list(plan["children"])] for key, plan in plans],
    )
    yield f"\nCommand: `python -m benchmarks.tree_estimator --steps {result['groups'] // 8} --report`.\n"


def answer(rows: Mapping[str, Any]) -> str:  # a JSON object
    """Return the answer in a sentence."""
    names = (
        "`planned`, chosen by the rule",
        "chain x 6, `gae_turn`, exact critic",
        "chain x 6, `rloo`, `beta: fitted`",
    )
    best, critic, scaled = ([rows[name][c]["all"] for c in ("0.0", "0.5", "1.5")] for name in names)
    return (
        f"Planned trees have {_series(best)} times the signal of chains with leave-one-out, from no noise to much; "
        f"chains with an exact critic {_series(critic)}; the scale β alone {_series(scaled)}."
    )


def cell(figures: Mapping[str, float], label: str) -> str:
    """Return a figure of all turns, that of the late ones, and whether the estimator is clearly biased."""
    bias = ", biased" if figures.get("largest_z", 0.0) > CLEARLY_BIASED else ""
    return f"{_number(figures['all' + label])} ({_number(figures['late' + label])}){bias}"


def _series(values: list[float]) -> str:
    return ", ".join(_number(value) for value in values[:-1]) + f" and {_number(values[-1])}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _task(key: str) -> str:
    return key.replace("c=", "c = ").replace("_early10", ", early turns cost 10")


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
