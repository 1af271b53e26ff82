"""Unbiasedness by enumeration: the mean of an estimate over every group that can be sampled is the true gradient."""

import numpy as np
import pytest

from envgym.core.trajectory import Group
from envgym.trainer.methods.corrections import Tis, TisLevel
from envgym.trainer.methods.credit.gae import GaeTurn
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo, Rloo, episode_credits, episode_rewards
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.losses import SeqMeanTokenMean, SeqMeanTokenSumNorm
from envgym.trainer.methods.protocols import CRITIC_VALUES, Credit, CreditContext, TrajectoryCredit, TrajectoryValues
from tests.support.enumerable import (
    LOGITS,
    Enumerable,
    SampledGroup,
    expected_gradient,
    groups,
    objective,
    probabilities,
)
from tests.support.plugins import CREDITS

WORLD = Enumerable(logits=LOGITS)
OLDER = Enumerable(logits=LOGITS + np.array([[0.3, -0.2], [0.1, 0.5], [-0.6, 0.2]]))
"""The policy that sampled what is stale."""
EXACT_ON_CHAINS: dict[str, Credit] = {"rloo": Rloo(), "turn_grpo": TurnGrpo(), "sibling": Sibling()}


def without_baseline(group: Group) -> tuple[TrajectoryCredit, ...]:
    """REINFORCE: the reward is the advantage."""
    return episode_credits(group.valid, episode_rewards(group))


@pytest.fixture(scope="module")
def sampled() -> dict[int, list[SampledGroup]]:
    return {size: groups(WORLD.chains(), size) for size in (1, 2, 3)}


def test_true_gradient_agrees_with_differences() -> None:
    def value(logits: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
        return sum(p * sum(visit.reward for visit in visits) for p, visits in Enumerable(logits=logits).chains())

    for place in np.ndindex(*LOGITS.shape):
        step = np.zeros_like(LOGITS)
        step[place] = 1e-5
        slope = (value(LOGITS + step) - value(LOGITS - step)) / 2e-5
        assert WORLD.true_gradient()[place] == pytest.approx(slope, abs=1e-9)


def test_every_way_to_sample_has_probability_one() -> None:
    chosen = [WORLD.expanded_at_random(), WORLD.forked_at_surprise(), WORLD.searched()]
    for found in (WORLD.chains(), WORLD.grown(lambda depth: 2), *chosen):
        assert sum(chance for chance, _ in found) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", EXACT_ON_CHAINS)
def test_unbiased_on_groups_of_chains(name: str, size: int, sampled: dict[int, list[SampledGroup]]) -> None:
    found = expected_gradient(WORLD, EXACT_ON_CHAINS[name], sampled[size])
    assert found == pytest.approx(WORLD.true_gradient(), abs=1e-10)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", EXACT_ON_CHAINS)
def test_unbiased_where_contexts_are_rewritten(name: str, size: int) -> None:
    """An episode in several rows counts once, as `drop_oldest_turns` makes them."""
    rewritten = groups(WORLD.chains(), size, rewritten=True)
    truth = WORLD.true_gradient()
    assert expected_gradient(WORLD, EXACT_ON_CHAINS[name], rewritten) == pytest.approx(truth, abs=1e-10)
    # Dr. GRPO: a constant instead of the length, and a mean that counts the episode itself
    over_constant = objective(SeqMeanTokenSumNorm(max_tokens=4))
    found = 4 * size / (size - 1) * expected_gradient(WORLD, DrGrpo(), rewritten, over_constant)
    assert found == pytest.approx(truth, abs=1e-10)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("name", ["grpo", "rloo", "turn_grpo", "sibling", "tree_grpo", "tree_rl", "deep_search"])
def test_learner_ascends_the_estimate_over_the_episodes_of_searched_trees(name: str, rewritten: bool) -> None:
    """Branching follows the rewards here, so no estimate is exact; but it is the one that the formula gives."""
    credit: Credit = CREDITS[name]()
    sampled = groups(WORLD.searched(), 1, rewritten=rewritten)
    assert max(len(item.group.valid) for item in sampled) == 3
    expected = sum(item.probability * WORLD.estimate(credit(item.group)) for item in sampled)
    assert expected_gradient(WORLD, credit, sampled) == pytest.approx(expected, abs=1e-10)


def test_mean_over_an_episode_is_the_same_in_one_row_and_in_several() -> None:
    """GRPO's mean over tokens is over those of the episode, so a rewrite changes nothing."""
    in_one, in_several = (groups(WORLD.chains(), 2, rewritten=rewritten) for rewritten in (False, True))
    over_tokens = objective(SeqMeanTokenMean())
    expected = expected_gradient(WORLD, Grpo(), in_one, over_tokens)
    assert expected_gradient(WORLD, Grpo(), in_several, over_tokens) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", EXACT_ON_CHAINS)
def test_unbiased_on_stale_samples_with_the_ratio_of_the_whole_episode(name: str) -> None:
    stale = groups(OLDER.chains(), 2)
    whole = objective(correction=Tis(level=TisLevel.SEQUENCE, cap=1e9))
    truth = WORLD.true_gradient()
    assert expected_gradient(WORLD, EXACT_ON_CHAINS[name], stale, whole) == pytest.approx(truth, abs=1e-10)
    assert expected_gradient(WORLD, EXACT_ON_CHAINS[name], stale) != pytest.approx(truth, abs=1e-2)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_undecayed_gae_turn_is_unbiased_for_any_critic(value: float, sampled: dict[int, list[SampledGroup]]) -> None:
    def with_critic(group: Group) -> tuple[TrajectoryCredit, ...]:
        sizes = [len(episode.path) - 1 for episode in group.valid]
        pairs = zip(group.valid, sizes, strict=True)
        said = [TrajectoryValues(trajectory=item, values=((), *[(value,)] * size)) for item, size in pairs]
        return tuple(GaeTurn(decay=1.0).assign([group], CreditContext(scores={CRITIC_VALUES: said})))

    assert expected_gradient(WORLD, with_critic, sampled[2]) == pytest.approx(WORLD.true_gradient(), abs=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reinforce_is_unbiased(size: int, sampled: dict[int, list[SampledGroup]]) -> None:
    found = expected_gradient(WORLD, without_baseline, sampled[size])
    assert found == pytest.approx(WORLD.true_gradient(), abs=1e-10)


@pytest.mark.parametrize("children", [(2, 2, 1), (2, 1, 3)])
def test_siblings_are_unbiased_on_trees_whose_branching_depends_on_depth_alone(children: tuple[int, ...]) -> None:
    trees = groups(WORLD.grown(lambda depth: children[depth]), 1)
    assert expected_gradient(WORLD, Sibling(), trees) == pytest.approx(WORLD.true_gradient(), abs=1e-10)


def test_group_mean_shrinks_the_gradient_by_the_episodes_own_share(
    sampled: dict[int, list[SampledGroup]],
) -> None:
    for size in (2, 3):
        found = expected_gradient(WORLD, DrGrpo(), sampled[size])
        assert found == pytest.approx((size - 1) / size * WORLD.true_gradient(), abs=1e-10)


def test_leaving_ended_episodes_out_of_the_baseline_would_be_biased(sampled: dict[int, list[SampledGroup]]) -> None:
    """The tempting alternative: compare a turn only with the episodes that reached it, a lone one with nothing."""

    def reached_only(group: Group) -> tuple[TrajectoryCredit, ...]:
        found = TurnGrpo()(group)
        lengths = [len(item.trajectory.turns) for item in found]
        return tuple(
            TrajectoryCredit(
                trajectory=item.trajectory,
                advantages=tuple(
                    entry if sum(length >= depth for length in lengths) > 1 else 0.0
                    for depth, entry in enumerate(item.advantages)
                ),
            )
            for item in found
        )

    truth = WORLD.true_gradient()
    found = expected_gradient(WORLD, reached_only, sampled[2])
    assert found[0] == pytest.approx(truth[0], abs=1e-10)  # all episodes have a first turn
    # state 1 is met at the second turn alone, and counts only where the other episode has one, too
    assert found[1] == pytest.approx(probabilities(LOGITS)[0, 1] * truth[1], abs=1e-10)
