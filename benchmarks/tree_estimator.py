"""Signal to noise of gradient estimators on chains and trees, per counted turn, by sampling a task with known answers.

The task is `benchmarks._tree_task`; the credits are those that train, in steps of 8 groups. A figure is
the square of the mean gradient's part along the true one, divided by the variance of a group's gradient and by its mean
cost, relative to six chains with `rloo`: of all turns, and of those after the noisy ones alone.

Run: python -m benchmarks.tree_estimator [--steps 150]. Prints one JSON line, the data of studies/tree_estimator.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks._options import print_result, read_options
from benchmarks._tree_task import (
    NUM_NOISY,
    NUM_TURNS,
    TRUE_GRADIENT,
    Array,
    SampledGroup,
    expand_at_random,
    gradient,
    grow,
    make_group,
    value,
    variance,
)
from envgym.core.trajectory import Group
from envgym.seeds import generator
from envgym.trainer.batch.build import assign_credits
from envgym.trainer.methods.credit.baseline_scale import scale_baselines
from envgym.trainer.methods.credit.gae import GaeTurn
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.outcome import Grpo, Rloo
from envgym.trainer.methods.credit.paths import GroupTree
from envgym.trainer.methods.credit.planned import PlannedCredit, baseline_credits, episodes_per_group
from envgym.trainer.methods.credit.planned_gae import PlannedGae
from envgym.trainer.methods.credit.return_variances import ReturnVariance
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.tree_outcome import TreeGrpo
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import (
    CRITIC_VALUES,
    BatchCredit,
    Credit,
    CreditContext,
    TrajectoryCredit,
    TrajectoryValues,
)
from envgym.trainer.methods.tree_plans import TreePlan, best_plan, measure_moments, small_plans

NUM_GROUPS: Final = 8
NUM_PILOTS: Final = 36
NOISES: Final = (0.0, 0.5, 1.5)
EARLY_COST: Final = 10.0
MOST_LEAVES: Final = 8
Values = Callable[[Sequence[SampledGroup]], Callable[[float, int, int], float]]
"""Fits a critic: (total before the turn, turn, number of the group) -> value."""


class Arm(NamedTuple):
    """One row of the table."""

    sample: Callable[[np.random.Generator, float, str], SampledGroup]
    assign: Callable[[Sequence[SampledGroup], float], Sequence[TrajectoryCredit]]
    once: bool = False


def chains(count: int) -> Callable[[np.random.Generator, float, str], SampledGroup]:
    return trees(TreePlan(count))


def trees(plan: TreePlan) -> Callable[[np.random.Generator, float, str], SampledGroup]:
    levels = dict(zip(plan.turns, plan.children, strict=True))
    return lambda rng, c, name: make_group(name, [grow(rng, c, levels) for _ in range(plan.trees)])


def random_expand(rng: np.random.Generator, c: float, name: str) -> SampledGroup:
    return make_group(name, [expand_at_random(rng, c, 2) for _ in range(2)])


def by(credit: Credit | BatchCredit) -> Callable[[Sequence[SampledGroup], float], list[TrajectoryCredit]]:
    return lambda groups, c: assign_credits(credit, [item.group for item in groups])


def with_critic(credit: BatchCredit, fit: Values) -> Callable[[Sequence[SampledGroup], float], list[TrajectoryCredit]]:
    def assign(groups: Sequence[SampledGroup], c: float) -> list[TrajectoryCredit]:
        predict = fit(groups)
        values: list[TrajectoryValues] = []
        for number, item in enumerate(groups):
            for episode in item.group.valid:
                before = [0.0, *(choice.total for choice in item.path(episode))][:-1]
                known = tuple((predict(total, turn, number),) for turn, total in enumerate(before))
                values.append(TrajectoryValues(trajectory=episode, values=((), *known)))
        return list(credit.assign([item.group for item in groups], CreditContext(scores={CRITIC_VALUES: values})))

    return assign


def exact_values(groups: Sequence[SampledGroup]) -> Callable[[float, int, int], float]:
    """Know the value."""
    return lambda total, turn, number: value(total, turn)


def fitted_values(groups: Sequence[SampledGroup]) -> Callable[[float, int, int], float]:
    """Fit a line per turn to the episodes of the other groups of the step."""
    totals = np.array([[[0.0, *(choice.total for choice in tree)] for tree in item.choices] for item in groups])
    lines: dict[tuple[int, int], Array] = {}
    for number in range(len(groups)):
        others = np.delete(totals, number, axis=0).reshape(-1, NUM_TURNS + 1)
        for turn in range(NUM_TURNS):
            # at the first turn all totals are 0: the line is the mean
            inputs = np.stack([others[:, turn], np.ones(len(others))], axis=1)
            lines[number, turn] = np.linalg.lstsq(inputs, others[:, -1])[0]
    return lambda total, turn, number: float(lines[number, turn] @ (total, 1.0))


def with_known_variance(groups: Sequence[SampledGroup], c: float) -> list[TrajectoryCredit]:
    """Assign `planned` with the true variances."""
    known = variance(c)
    of: ReturnVariance = lambda turn, given: float(known[given])  # noqa: E731  # a name for its type
    returns = [NodeReturns(group_tree=GroupTree(group=item.group)) for item in groups]
    scale = episodes_per_group([item.group for item in groups])
    return scale_baselines([baseline_credits(of_group, of, scale=scale) for of_group in returns], "fitted")


def arms() -> dict[str, Arm]:
    six, two_levels = chains(6), trees(TreePlan(3, (2, 6), (2, 2)))
    after_noise, half = trees(TreePlan(4, (NUM_NOISY,), (2,))), trees(TreePlan(4, (NUM_TURNS // 2,), (2,)))
    return {
        "chain x 6, `rloo`": Arm(six, by(Rloo())),
        "chain x 8, `rloo`": Arm(chains(8), by(Rloo())),
        "chain x 6, `rloo`, `beta: fitted`": Arm(six, by(Rloo(beta="fitted"))),
        "chain x 6, `grpo`": Arm(six, by(Grpo())),
        "chain x 6, `turn_grpo`": Arm(six, by(TurnGrpo())),
        "chain x 6, `gae_turn`, fitted critic": Arm(six, with_critic(GaeTurn(decay=1.0), fitted_values)),
        "chain x 6, `gae_turn`, exact critic": Arm(six, with_critic(GaeTurn(decay=1.0), exact_values)),
        "`random_expand` 2 x 3, `tree_grpo`": Arm(random_expand, by(TreeGrpo())),
        "`random_expand` 2 x 3, `sibling`": Arm(random_expand, by(Sibling())),
        "`planned` 3 x 2 x 2, turns 2 and 6, `sibling`": Arm(two_levels, by(Sibling())),
        "`planned` 3 x 2 x 2, turns 2 and 6, `beta: 1`": Arm(two_levels, by(PlannedCredit(beta=1.0)), once=True),
        "`planned` 3 x 2 x 2, turns 2 and 6": Arm(two_levels, by(PlannedCredit()), once=True),
        "`planned` 4 x 2, turn 2": Arm(after_noise, by(PlannedCredit()), once=True),
        "`planned` 4 x 2, turn 2, known S": Arm(after_noise, with_known_variance, once=True),
        "`planned_gae` 4 x 2, turn 5, exact critic": Arm(
            half, with_critic(PlannedGae(decay=1.0), exact_values), once=True
        ),
    }


def chosen_plan(c: float, early: float) -> TreePlan:
    """Return the plan that the rule chooses from pilot groups whose turns of branching are drawn."""
    rng = generator("tree_estimator", "pilot", str(c))
    pilots: list[Group] = []
    for number in range(NUM_PILOTS):
        levels = [sorted(1 + rng.permutation(NUM_TURNS - 1)[:2]) for _ in range(3)]
        drawn = [grow(rng, c, {int(turn): 2 for turn in turns}) for turns in levels]
        pilots.append(make_group(f"pilot{number}", drawn).group)
    moments = measure_moments(pilots, by_tokens=False)
    moments.costs[:NUM_NOISY] *= early
    return best_plan(moments, [*small_plans(NUM_TURNS, most_leaves=MOST_LEAVES), TreePlan(MOST_LEAVES)])


def gradients(arm: Arm, c: float, steps: int, name: str) -> Iterator[tuple[Array, SampledGroup]]:
    """Yield the gradient of every group, in the scale of an average over groups."""
    for step in range(steps):
        rng = generator("tree_estimator", name, str(c), step)
        groups = [arm.sample(rng, c, f"{step}-{number}") for number in range(NUM_GROUPS)]
        credits = iter(arm.assign(groups, c))
        episodes = episodes_per_group([item.group for item in groups])
        for item in groups:
            of_group = [next(credits) for _ in item.group.valid]
            yield gradient(item, of_group, episodes=episodes, once=arm.once), item


def measure(arm: Arm, c: float, steps: int, name: str) -> dict[str, float]:
    """Return signal to noise per turn, of all turns and of the late ones, at both costs, and a test of the bias.

    `largest_z`: the largest difference of the mean gradient from the true one, in standard errors. `cosine`: of the
    two, which sampling lowers, too.
    """
    sampled = list(gradients(arm, c, steps, name))
    found = np.array([item for item, _ in sampled])
    result: dict[str, float] = {}
    mean, spread = found.mean(axis=0), found.var(axis=0, ddof=1)
    for part, turns in (("all", slice(0, None)), ("late", slice(NUM_NOISY, None))):
        truth = TRUE_GRADIENT[turns] / np.linalg.norm(TRUE_GRADIENT[turns])
        along = found[:, turns] @ truth
        # the square of a mean of n samples is too large by their variance / n
        signal = float(along.mean() ** 2 - along.var(ddof=1) / len(found))
        if name in UNBIASED:
            signal = float((TRUE_GRADIENT[turns] ** 2).sum())
        for label, early in (("", 1.0), ("_early10", EARLY_COST)):
            cost = float(np.mean([group.cost(early) for _, group in sampled]))
            result[part + label] = signal / (float(spread[turns].sum()) * cost)
    error = np.sqrt(spread / len(found))
    result["cosine"] = round(float(mean @ TRUE_GRADIENT / np.linalg.norm(mean) / np.linalg.norm(TRUE_GRADIENT)), 2)
    result["largest_z"] = round(float(np.abs((mean - TRUE_GRADIENT) / error).max()), 1)
    return result


BIASED: Final = ("`grpo`", "`tree_grpo`", "`random_expand`")
RULE: Final = "`planned`, chosen by the rule"
UNBIASED: Final = (RULE, *(name for name in arms() if not any(part in name for part in BIASED)))


def table(steps: int, only: Sequence[str]) -> dict[str, Any]:  # a JSON object
    """Return row -> c -> figures, relative to six chains, and the plans that the rule chose."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    plans: dict[str, Any] = {}
    for c in NOISES:
        unit: Mapping[str, float] | None = None
        for name, arm in arms().items():
            if only and unit is not None and not any(part in name for part in only):
                continue
            measured = measure(arm, c, steps * (1 if unit else 4), name)  # all others are divided by the first
            unit = unit or measured
            found.setdefault(name, {})[str(c)] = relative(measured, unit)
        assert unit is not None, "the first row is the unit"
        for label, early in (("", 1.0), ("_early10", EARLY_COST)):
            plan = chosen_plan(c, early)
            arm = Arm(trees(plan), by(PlannedCredit()), once=True)
            measured = relative(measure(arm, c, steps, RULE), unit)
            of_rule = found.setdefault(RULE, {}).setdefault(str(c), {})
            of_rule |= {f"{part}{label}": measured[f"{part}{label}"] for part in ("all", "late")}
            plans[f"c={c:g}{label}"] = plan._asdict()
    return {"rows": found, "plans": plans}


def relative(measured: Mapping[str, float], unit: Mapping[str, float]) -> dict[str, float]:
    """Divide by six chains, all but the tests of bias."""
    return {
        key: entry if key in ("cosine", "largest_z") else round(entry / unit[key], 3) for key, entry in measured.items()
    }


def main() -> None:
    """Measure the rows, all of them by default, in `--steps` steps of 8 groups for each figure, and print one line."""
    options = read_options(__doc__, steps=150, only=())
    began = time.perf_counter()
    figures = table(options.steps, options.only)
    seconds = round(time.perf_counter() - began)
    print_result("tree_estimator", groups=options.steps * NUM_GROUPS, **figures, seconds=seconds)


if __name__ == "__main__":
    main()
