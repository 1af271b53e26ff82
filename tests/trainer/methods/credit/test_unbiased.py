"""Unbiasedness by enumeration: the mean of an estimate over every group that can be sampled is the true gradient."""

import numpy as np
import pytest

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.dr_grpo import DrGrpo
from envgym.trainer.methods.credit.gae_turn import GaeTurn
from envgym.trainer.methods.credit.outcome import episode_credits, episode_rewards
from envgym.trainer.methods.credit.rloo import Rloo
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import Credit, TrajectoryCredit, TrajectoryValues
from tests.support.enumerable import LOGITS, Enumerable, SampledGroup, expected_gradient, groups, probabilities

WORLD = Enumerable(logits=LOGITS)


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
    for found in (WORLD.chains(), WORLD.grown(lambda depth: 2), WORLD.expanded_at_random(), WORLD.forked_at_surprise()):
        assert sum(chance for chance, _ in found) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "credit", [Rloo(), TurnGrpo(), Sibling(), without_baseline], ids=["rloo", "turn_grpo", "sibling", "reinforce"]
)
def test_unbiased_on_groups_of_chains(credit: Credit, size: int, sampled: dict[int, list[SampledGroup]]) -> None:
    found = expected_gradient(WORLD, credit, sampled[size])
    assert found == pytest.approx(WORLD.true_gradient(), abs=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_turn_level_gae_without_decay_is_unbiased_for_any_critic(
    value: float, sampled: dict[int, list[SampledGroup]]
) -> None:
    def with_critic(group: Group) -> tuple[TrajectoryCredit, ...]:
        sizes = [len(episode.path) - 1 for episode in group.valid]
        pairs = zip(group.valid, sizes, strict=True)
        said = [TrajectoryValues(trajectory=item, values=((), *[(value,)] * size)) for item, size in pairs]
        return tuple(found.credit for found in GaeTurn(decay=1.0).estimate_advantages(group, said))

    assert expected_gradient(WORLD, with_critic, sampled[2]) == pytest.approx(WORLD.true_gradient(), abs=1e-10)


def test_reinforce_is_unbiased_on_single_episodes(sampled: dict[int, list[SampledGroup]]) -> None:
    found = expected_gradient(WORLD, without_baseline, sampled[1])
    assert found == pytest.approx(WORLD.true_gradient(), abs=1e-10)


@pytest.mark.parametrize("children", [(2, 2, 1), (2, 1, 3)])
def test_siblings_are_unbiased_on_trees_whose_branching_depends_on_depth_alone(children: tuple[int, ...]) -> None:
    trees = groups(WORLD.grown(lambda depth: children[depth]), 1)
    assert expected_gradient(WORLD, Sibling(), trees) == pytest.approx(WORLD.true_gradient(), abs=1e-10)


def test_group_mean_shrinks_the_gradient_by_the_share_of_the_episode_itself(
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
