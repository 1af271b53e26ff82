"""Planned trees: the filter by hand, reductions, and unbiasedness by enumeration for any variances and any scale."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.baseline_scale import Beta, scale_baselines
from envgym.trainer.methods.credit.gae import GaeBilevel, GaeCredit, GaeToken, GaeTurn
from envgym.trainer.methods.credit.node_returns import NodeReturns
from envgym.trainer.methods.credit.outcome import Rloo
from envgym.trainer.methods.credit.paths import GroupTree
from envgym.trainer.methods.credit.planned import FilteredMean, PlannedCredit, baseline_credits, combine
from envgym.trainer.methods.credit.planned_gae import PlannedGae
from envgym.trainer.methods.credit.return_variances import (
    MeasuredVariance,
    ReturnVariance,
    variance_sums,
    variances_of_others,
)
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import (
    CRITIC_VALUES,
    BatchCredit,
    Credit,
    CreditContext,
    TrajectoryCredit,
    TrajectoryValues,
)
from tests.support.credit_trees import branched, chain, chains, group_of, per_node
from tests.support.enumerable import (
    LOGITS,
    Array,
    Enumerable,
    Sampled,
    SampledGroup,
    expected_gradient,
    groups,
    probabilities,
)

WORLD = Enumerable(logits=LOGITS)
TRUTH = WORLD.true_gradient()


def falling(turn: int, given: int) -> float:
    """S_t(u) of three turns that matter as much as each other."""
    return 3.0 - given


def odd(turn: int, given: int) -> float:
    """No variance of any env: it rises and falls."""
    return [0.7, 0.0, 5.0][(2 * turn + given) % 3]


def constant(turn: int, given: int) -> float:
    """The history says nothing of the return."""
    return 1.0


def planned(group: Group, variance: ReturnVariance, beta: float = 1.0) -> tuple[TrajectoryCredit, ...]:
    returns = NodeReturns(group_tree=GroupTree(group=group))
    return tuple(scale_baselines([baseline_credits(returns, variance, scale=len(group.valid))], beta))


def credited(variance: ReturnVariance, beta: float) -> Credit:
    def credit(group: Group) -> tuple[TrajectoryCredit, ...]:
        return planned(group, variance, beta)

    return credit


def plan(children: Sequence[int]) -> list[Sampled]:
    return WORLD.grown(lambda depth: children[depth])


def drawn(*plans: Sequence[int]) -> list[Sampled]:
    """Return every tree of a plan that is drawn uniformly, for each tree, before it is grown."""
    return [(chance / len(plans), visits) for children in plans for chance, visits in plan(children)]


# ---- the filter ----------------------------------------------------------------------------------------------------


def test_step_of_the_filter_by_hand() -> None:
    # P = 1 + 2 = 3, K = 3 / (3 + 1) = .75: b = 4 + .75 (0 - 4) = 1, P = .25 * 3
    assert combine(FilteredMean(4.0, 1.0), 2.0, FilteredMean(0.0, 1.0)) == FilteredMean(1.0, 0.75)
    assert combine(None, 2.0, FilteredMean(3.0, 0.5)) == FilteredMean(3.0, 0.5)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=1, max_size=6))
def test_without_drift_the_filter_is_the_mean_weighted_by_precision(measured: list[tuple[float, float]]) -> None:
    found: FilteredMean | None = None
    for mean, variance in measured:
        found = combine(found, 0.0, FilteredMean(mean, variance))
    assert found is not None
    precision = sum(1 / variance for _, variance in measured)
    assert found.mean == pytest.approx(sum(mean / variance for mean, variance in measured) / precision)
    assert found.variance == pytest.approx(1 / precision)


def test_baselines_of_a_tree_by_hand() -> None:
    # A: turn 0, then two children at turn 1 that are paid 1 and 0; B: one episode of two turns, paid 0.5.
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0)), chain("B", [0.0, 0.5]))
    found = planned(group, falling)
    # weights 1/4, 1/4, 1/2, times 3 episodes. A's first turn: w 1/2, Q = .5, b = .5. B's: w 1/2, Q = .5, b = .5.
    # Below: prior from B for turn 1: b = .5, P = D(B) = S(0) = 3; drift S(0) - S(1) = 1: P = 4; N = S(1) = 2;
    # K = 4 / 6: first child: b = .5 + 2/3 (0 - .5) = 1/6, A = 3/4 (1 - 1/6); second: b = .5 + 2/3 (.5) = 5/6.
    # B's turn 1: b = mean of A's children = .5.
    assert per_node(found) == [
        pytest.approx([0.0, 0.75 * 5 / 6]),
        pytest.approx([0.0, -0.75 * 5 / 6]),
        pytest.approx([0.0, 0.0]),
    ]


def test_a_sibling_that_branches_again_has_less_noise() -> None:
    # The mean over two branches at turn 1: D = S(0) - S(1) + 2 S(1) / 4 = 1 + 1 = 2 instead of S(0) = 3.
    group = group_of(
        branched("A", (0, 0.0), (1, 4.0), (1, 0.0)), chain("B", [0.0, 2.0]), branched("C", (0, 0.0), (1, 9.0), (1, 0.0))
    )
    found = per_node(planned(group, falling))
    # C below its branch: prior for turn 1 = mean of A (2) and B (2), P = (2 + 3) / 4 = 1.25; drift 1: P = 2.25; N = 2.
    gain = 2.25 / 4.25
    weight = 5 / 6  # 5 episodes, 1/3 1/2
    assert found[3][1] == pytest.approx(weight * (9 - (2 + gain * (0 - 2))))
    assert found[4][1] == pytest.approx(weight * (0 - (2 + gain * (9 - 2))))


# ---- reductions ----------------------------------------------------------------------------------------------------

TURNS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5)


@given(TURNS)
def test_on_chains_it_is_turn_grpo(turns: list[list[float]]) -> None:
    found, expected = per_node(planned(chains(*turns), falling)), per_node(TurnGrpo()(chains(*turns)))
    for of_episode, wanted in zip(found, expected, strict=True):
        assert of_episode == pytest.approx(wanted, abs=1e-9)


def test_where_siblings_are_trusted_alone_it_is_sibling() -> None:
    """With S(u) = 0 from the branch on, K = 1. `sibling` trains a node in every episode, this one with their sum."""
    group = group_of(branched("A", (0, 0.0), (1, 1.0), (1, 0.0), (1, 5.0)), chain("B", [0.0, 0.5]))
    found = per_node(planned(group, lambda turn, given: float(given == 0)))
    expected = per_node(Sibling()(group))
    assert [first for first, _ in found] == pytest.approx([3 * expected[0][0]] * 3 + [expected[3][0]])
    assert [second for _, second in found] == pytest.approx([second for _, second in expected])


def test_a_group_of_one_has_no_advantage() -> None:
    assert per_node(PlannedCredit().assign([chains([1.0, 2.0])], CreditContext())) == [[0.0, 0.0]]


def test_a_group_without_a_valid_episode_is_left_out() -> None:
    empty = Group(key="none", trees=())
    assert PlannedCredit().assign([empty], CreditContext()) == []
    alone = PlannedCredit().assign([chains([1.0], [0.0])], CreditContext())
    assert per_node(PlannedCredit().assign([empty, chains([1.0], [0.0])], CreditContext())) == per_node(alone)


# ---- unbiased ------------------------------------------------------------------------------------------------------

ONE_LEVEL, TWO_LEVELS = (1, 2, 1), (1, 2, 2)
PLANS: dict[str, Callable[[], list[SampledGroup]]] = {
    "chains": lambda: groups(WORLD.chains(), 3),
    "one level": lambda: groups(plan(ONE_LEVEL), 2),
    "three children": lambda: groups(plan((1, 3, 1)), 2),
    "two levels": lambda: groups(plan(TWO_LEVELS), 2),
    "three levels, the first at the prompt": lambda: groups(plan((2, 2, 2)), 1),
    "two levels, three children": lambda: groups(plan((3, 1, 3)), 1),
    "places drawn for each tree": lambda: groups(drawn(ONE_LEVEL, (1, 1, 3), (1, 1, 1)), 2),
    "branches where the state says so": lambda: groups(WORLD.grown_by_history(in_state_two), 2),
}


def in_state_two(depth: int, state: int) -> int:
    """Branch in state 2 alone: a rule that knows the history, and nothing of what is sampled next."""
    return 3 if state == 2 else 1


def mean_estimate(credit: Callable[[Group], Sequence[TrajectoryCredit]], sampled: Sequence[SampledGroup]) -> Array:
    terms = [item.probability * WORLD.estimate(credit(item.group), once=True) for item in sampled]
    return np.asarray(sum(terms), dtype=np.float64)


@pytest.mark.parametrize("name", PLANS)
def test_unbiased_for_any_variances_and_any_scale(name: str) -> None:
    sampled = PLANS[name]()
    assert math.fsum(item.probability for item in sampled) == pytest.approx(1, abs=1e-12)
    for variance, beta in ((falling, 1.0), (odd, 0.4), (constant, 1.7)):
        found = mean_estimate(credited(variance, beta), sampled)
        assert found == pytest.approx(TRUTH, abs=1e-10), (variance.__name__, beta)


@pytest.mark.parametrize("rewritten", [False, True])
def test_learner_ascends_the_true_gradient(rewritten: bool) -> None:
    """The rows, denominators and loss that train, also with a rewritten context at every turn."""
    sampled = groups(plan(ONE_LEVEL), 2, rewritten=rewritten)
    found = expected_gradient(WORLD, credited(odd, 0.4), sampled, once=True)
    assert found == pytest.approx(TRUTH, abs=1e-10)


def pairs(first: Sequence[SampledGroup], second: Sequence[SampledGroup]) -> list[tuple[float, list[Group]]]:
    return [(a.probability * b.probability, [a.group, b.group]) for a in first for b in second]


def mean_of_steps(credit: BatchCredit, steps: Sequence[tuple[float, list[Group]]], *, once: bool) -> Array:
    """Return the mean over all steps; losses are divided by the episodes of both groups."""
    context = CreditContext()
    terms = [chance * WORLD.estimate(credit.assign(step, context), once=once) for chance, step in steps]
    return np.asarray(sum(terms), dtype=np.float64)


def test_unbiased_with_what_it_measures_on_other_groups() -> None:
    """Variances and beta come from the other group, which differs in its number of episodes, as does this one."""
    trees, episodes = groups(plan(ONE_LEVEL), 2, name="a"), groups(WORLD.chains(), 2, name="b")
    found = mean_of_steps(PlannedCredit(), pairs(trees, episodes), once=True)
    assert found == pytest.approx(TRUTH, abs=1e-10)


def test_scale_from_the_group_itself_would_be_biased() -> None:
    """The tempting alternative: measure beta on all groups, this one included."""
    sampled = groups(WORLD.chains(), 2)

    def own_scale(group: Group) -> list[TrajectoryCredit]:
        returns = NodeReturns(group_tree=GroupTree(group=group))
        of_group = baseline_credits(returns, constant, scale=len(group.valid))
        copies = scale_baselines([of_group, of_group], "fitted")  # the other group is this one
        return copies[: len(of_group)]

    assert np.abs(mean_estimate(own_scale, sampled) - TRUTH).max() > 0.01


@pytest.mark.parametrize("beta", [0.0, 0.6, "fitted"])
def test_rloo_is_unbiased_with_any_scale(beta: Beta) -> None:
    steps = pairs(groups(WORLD.chains(), 2, name="a"), groups(WORLD.chains(), 2, name="b"))
    assert mean_of_steps(Rloo(beta=beta), steps, once=False) == pytest.approx(TRUTH, abs=1e-10)


class WithValues:
    """A critic's credit with one value for everything."""

    def __init__(self, credit: BatchCredit, value: float) -> None:
        self._credit, self._value = credit, value

    def assign(self, groups: Sequence[Group], context: CreditContext) -> Sequence[TrajectoryCredit]:
        values = [
            TrajectoryValues(trajectory=item, values=((), *[(self._value,)] * (len(item.path) - 1)))
            for group in groups
            for item in group.valid
        ]
        return self._credit.assign(groups, CreditContext(scores={CRITIC_VALUES: values}))


@pytest.mark.parametrize("beta", [0.0, 0.6, "fitted"])
@pytest.mark.parametrize("credit", [GaeTurn, GaeToken, GaeBilevel])
def test_critic_without_decay_is_unbiased_with_any_scale(credit: type[GaeCredit], beta: Beta) -> None:
    steps = pairs(groups(WORLD.chains(), 1, name="a"), groups(WORLD.chains(), 2, name="b"))
    found = mean_of_steps(WithValues(credit(decay=1.0, beta=beta), 0.3), steps, once=False)
    assert found == pytest.approx(TRUTH, abs=1e-10)


# ---- what is measured ----------------------------------------------------------------------------------------------


def test_variances_are_measured_without_bias() -> None:
    """The mean estimate at the prompt and at the second turn is the variance of what is paid from there."""
    sampled = groups(drawn(ONE_LEVEL), 2)
    sums = np.zeros((3, 3, 2))
    for item in sampled:
        measured = variance_sums(NodeReturns(group_tree=GroupTree(group=item.group)))
        sums[: len(measured), : len(measured)] += item.probability * measured
    chances, totals = zip(*[(chance, sum(v.reward for v in visits)) for chance, visits in WORLD.chains()], strict=True)
    mean = np.dot(chances, totals)
    assert sums[0, 0] == pytest.approx([np.dot(chances, (np.array(totals) - mean) ** 2), 1.0])

    def second_turn(state: int) -> float:
        below = WORLD.chains(state)
        paid = np.array([sum(visit.reward for visit in visits) for _, visits in below])
        chance = np.array([chance for chance, _ in below])
        return float(chance @ paid**2 - (chance @ paid) ** 2)

    reached = probabilities(LOGITS)[0, 1]
    expected = 2 * reached * (0.6 * second_turn(1) + 0.4 * second_turn(2))  # of two trees
    assert sums[1, 1] == pytest.approx([expected, 2 * reached])


def test_measured_variance_falls_and_is_interpolated() -> None:
    sums = np.zeros((4, 4, 2))
    sums[3, 0], sums[3, 1], sums[3, 3] = (4.0, 2.0), (3.0, 1.0), (2.0, 2.0)  # means 2, 3 and 1
    found = MeasuredVariance(sums)
    # 2 and 3 rise: both are their mean by counts, (4 + 3) / 3
    assert [found(3, given) for given in range(4)] == pytest.approx([7 / 3, 7 / 3, (7 / 3 + 1) / 2, 1.0])
    assert found(1, 0) == found(9, 2) == 1.0  # nothing measured


def test_a_group_is_measured_by_the_others_alone() -> None:
    same, other = chains([1.0, 2.0], [0.0]), chains([3.0], [7.0])
    returns = [NodeReturns(group_tree=GroupTree(group=group)) for group in (same, other)]
    of_same, of_other = variances_of_others(returns)
    assert of_same(0, 0) == pytest.approx(8.0)  # (7 - 3)^2 / 2
    assert of_other(0, 0) == pytest.approx(4.5)  # (3 - 0)^2 / 2
    assert of_other(1, 1) == pytest.approx(2.0)  # (2 - 0)^2 / 2, of turn 1 given the prompt: nothing branches at turn 1
    assert of_same(1, 1) == 1.0  # the other group has no turn 1


def test_fitted_scale_by_hand() -> None:
    # Tokens of probability 1/2 weigh 1/4. Group B: rewards 2 and 1, so b = 1 and 2: beta = (2 1 + 1 2) / (1 + 4) = .8
    # for group A; group A: rewards 0 and 4: b = 4 and 0, beta = 0 for group B.
    credits = Rloo(beta="fitted").assign([chains([0.0], [4.0]), chains([2.0], [1.0])], CreditContext())
    assert [entry for (entry,) in per_node(credits)] == pytest.approx([0 - 0.8 * 4, 4 - 0.0, 2.0, 1.0])


def test_a_group_without_others_keeps_its_baseline() -> None:
    group = chains([0.0], [4.0])
    assert per_node(Rloo(beta="fitted")(group)) == per_node(Rloo()(group)) == [[-4.0], [4.0]]


# ---- with a critic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("children", [ONE_LEVEL, (1, 3, 1), TWO_LEVELS])
@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_planned_gae_without_decay_is_unbiased_for_any_critic(children: Sequence[int], beta: float) -> None:
    credit = WithValues(PlannedGae(decay=1.0, beta=beta), 0.3)
    sampled = groups(plan(children), 1)  # a critic needs no other tree
    found = mean_estimate(lambda group: credit.assign([group], CreditContext()), sampled)
    assert found == pytest.approx(TRUTH, abs=1e-10)


def test_planned_gae_with_a_fitted_scale_and_groups_of_other_sizes_is_unbiased() -> None:
    steps = pairs(groups(plan(ONE_LEVEL), 1, name="a"), groups(WORLD.chains(), 2, name="b"))
    credit = WithValues(PlannedGae(decay=1.0, beta="fitted"), 0.3)
    assert mean_of_steps(credit, steps, once=True) == pytest.approx(TRUTH, abs=1e-10)


def test_planned_gae_by_hand_and_on_chains() -> None:
    group = group_of(branched("A", (0, 0.0), (1, 4.0), (1, 0.0)), chain("B", [0.0, 6.0]))
    found = WithValues(PlannedGae(decay=1.0), 1.0).assign([group], CreditContext())
    # 3 episodes; w(A) = 1/2: 3/2 (2 - 1); below 1/4: 3/4 (4 - 1), 3/4 (0 - 1); B: 3/2 (6 - 1) twice
    assert [per_token(credit) for credit in found] == [
        pytest.approx([1.5, 2.25]),
        pytest.approx([1.5, -0.75]),
        pytest.approx([7.5, 7.5]),
    ]
    episodes = chains([1.0, 2.0], [0.0])
    for same, wanted in zip(
        WithValues(PlannedGae(), 0.5).assign([episodes], CreditContext()),
        WithValues(GaeTurn(), 0.5).assign([episodes], CreditContext()),
        strict=True,
    ):
        assert same.targets == wanted.targets
        assert per_token(same) == pytest.approx(per_token(wanted))


def per_token(credit: TrajectoryCredit) -> list[float]:
    return [value for entry in credit.advantages if isinstance(entry, tuple) for value in entry]
