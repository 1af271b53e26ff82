"""GAE over turns, tokens and both: published vectors, hand cases, reductions, and the defects of other code."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group, Trajectory, trajectories
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.trainer.batch.spread import node_values, token_advantages, token_targets
from envgym.trainer.methods.credit.gae import GaeBilevel, GaeToken, GaeTurn, gae
from envgym.trainer.methods.credit.paths import discounted_returns
from envgym.trainer.methods.protocols import (
    CRITIC_VALUES,
    CreditContext,
    CriticCredit,
    TrajectoryCredit,
    TrajectoryValues,
)
from tests.support import example_trees as cases
from tests.support.credit_trees import chains, group_of

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=5)


def published(first: float = 0.5, last: float = 1.0) -> Trajectory:
    """Two turns of three tokens with an observation between them, paid at their ends."""
    tree = cases.start("published")
    one = tree.add(tree.root, cases.turn(cases.policy(10, 11, 12), cases.tool(30)), outcome=cases.paid(first))
    tree.add(one, cases.turn(cases.policy(13, 14, 15)), outcome=cases.paid(last), ending=Ending.TERMINATED)
    (episode,) = trajectories(tree.freeze())
    return episode


VALUES = ((), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def judge(
    credit: CriticCredit, episode: Trajectory, values: tuple[tuple[float, ...], ...] = VALUES
) -> TrajectoryCredit:
    (found,) = with_values(credit, group_of(episode.tree), TrajectoryValues(trajectory=episode, values=values))
    return found


def with_values(credit: CriticCredit, group: Group, *values: TrajectoryValues) -> Sequence[TrajectoryCredit]:
    return credit.assign([group], CreditContext(scores={CRITIC_VALUES: values}))


def on_row(found: TrajectoryCredit) -> list[float]:
    """Return the advantages behind the four tokens of the prompt."""
    return list(token_advantages(found, found.trajectory.rows[0])[4:])


def rounded(targets: Sequence[float | None]) -> list[float | None]:
    return [None if target is None else round(target, 9) for target in targets]


def test_published_vector_of_gae_token() -> None:
    found = judge(GaeToken(), published())
    assert on_row(found) == pytest.approx([1.213201, 1.17179, 1.1282, 0, 0.556, 0.48, 0.4], abs=1e-6)


def test_published_vector_of_gae_bilevel() -> None:
    found = judge(GaeBilevel(turn_discount=0.9), published())
    assert on_row(found) == pytest.approx([1.171505, 1.1279, 1.082, 0, 0.556, 0.48, 0.4], abs=1e-6)
    targets = [t for t in token_targets(found, found.trajectory.rows[0])[4:] if t is not None]
    assert targets == pytest.approx([1.271505, 1.3279, 1.382, 0.956, 0.98, 1], abs=1e-6)


def test_gae_turn_by_hand() -> None:
    # V = .1, .4; d1 = 1 - .4 = .6; d0 = .5 + .9 * .4 - .1 = .76; A0 = .76 + .9 * .5 * .6 = 1.03
    found = judge(GaeTurn(discount=0.9, decay=0.5), published())
    assert on_row(found) == pytest.approx([1.03, 1.03, 1.03, 0, 0.6, 0.6, 0.6])
    assert found.targets is not None
    _, first, second = found.targets
    assert rounded(first) == [1.13, None, None]
    assert rounded(second) == [1.0, None, None]


@pytest.mark.parametrize("credit", [GaeTurn(), GaeBilevel(turn_discount=0.9)], ids=["gae_turn", "gae_bilevel"])
def test_turn_that_paid_nothing_is_a_turn(credit: CriticCredit) -> None:
    """Where turn ends are guessed from rewards, such a turn melts into the next: [.76195, .69679, .6282, ...]."""
    found = on_row(judge(credit, published(first=0.0)))
    paid = on_row(judge(credit, published(first=0.5)))
    assert found[4:] == paid[4:]
    assert found[2] == pytest.approx(paid[2] - 0.5)
    assert found[:3] != pytest.approx([0.76195, 0.69679, 0.6282], abs=1e-3)


@pytest.mark.parametrize("credit", [GaeTurn(), GaeToken(), GaeBilevel()], ids=["gae_turn", "gae_token", "gae_bilevel"])
def test_last_turn_that_paid_nothing_is_no_error(credit: CriticCredit) -> None:
    # the last token's advantage is 0 - V there
    last = {"GaeTurn": -0.4}.get(type(credit).__name__, -0.6)
    assert on_row(judge(credit, published(last=0.0)))[-1] == pytest.approx(last)


POLICY = ((), (-1.0, -2.0, -1.0), (-0.5, -0.5, -1.0))
REFERENCE = ((), (-1.5, -1.0, -1.0), (-0.5, -1.5, -1.0))
"""log pi - log pi_ref: .5, -1, 0, and 0, 1, 0."""


def with_kl(credit: CriticCredit) -> TrajectoryCredit:
    """Return the credit of the published episode with the log-probs of policy and reference."""
    episode = published()
    names = {CRITIC_VALUES: VALUES, "policy": POLICY, "reference": REFERENCE}
    scores = {name: [TrajectoryValues(trajectory=episode, values=values)] for name, values in names.items()}
    (found,) = credit.assign([group_of(episode.tree)], CreditContext(scores=scores))
    return found


def test_kl_in_the_reward_by_hand() -> None:
    # tokens cost .05, -.1, 0 | 0, .1, 0 and pay .5 and 1 at the ends of turns, so that the returns are
    # 1.45, 1.5, 1.4 | .9, .9, 1; less the values .1, .2, .3 | .4, .5, .6
    found = on_row(with_kl(GaeToken(decay=1.0, kl_coef=0.1)))
    assert found == pytest.approx([1.35, 1.3, 1.1, 0, 0.5, 0.4, 0.4])
    # a turn costs what its tokens cost: -.05 and .1, so turns pay .55 and .9, less V = .1 and .4
    found = on_row(with_kl(GaeTurn(decay=1.0, kl_coef=0.1)))
    assert found == pytest.approx([1.35, 1.35, 1.35, 0, 0.5, 0.5, 0.5])
    assert [request.model for request in GaeToken(kl_coef=0.1).scores] == ["policy", "reference"]
    assert GaeToken().scores == ()


def test_whitened_advantages_have_mean_0_and_variance_1_and_leave_the_targets() -> None:
    plain, white = (judge(GaeToken(whiten=whiten), published()) for whiten in (False, True))
    values = [value for value in on_row(plain) if value]
    mean = sum(values) / 6
    deviation = (sum((value - mean) ** 2 for value in values) / 5) ** 0.5
    expected = [(value - mean) / deviation for value in values]
    assert [value for value in on_row(white) if value] == pytest.approx(expected, abs=1e-6)
    assert white.targets == plain.targets


def test_observations_carry_nothing() -> None:
    """Values at tokens that the env wrote cannot enter: they are not asked for."""
    episode = published()
    of_row = [9.0, 9.0, 9.0, 9.0, 0.1, 0.2, 0.3, 9.0, 0.4, 0.5, 0.6]
    assert node_values(episode, [of_row]).values == VALUES


@given(REWARDS, st.floats(0, 1))
def test_decay_one_is_return_less_value(rewards: list[float], discount: float) -> None:
    values = [0.3 * number - 0.5 for number in range(len(rewards))]
    expected = [paid - value for paid, value in zip(discounted_returns(rewards, discount), values, strict=True)]
    assert gae(rewards, values, discount=discount, decay=1.0) == pytest.approx(expected, abs=1e-9)


@given(REWARDS, st.floats(0, 1))
def test_decay_zero_is_the_temporal_difference(rewards: list[float], discount: float) -> None:
    values = [0.3 * number - 0.5 for number in range(len(rewards))]
    nexts = [*values[1:], 0.0]
    expected = [r + discount * after - v for r, v, after in zip(rewards, values, nexts, strict=True)]
    assert gae(rewards, values, discount=discount, decay=0.0) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=15)
@given(REWARDS, st.floats(0, 1), st.floats(0, 1))
def test_turns_of_one_token_make_all_three_one(rewards: list[float], discount: float, decay: float) -> None:
    (episode,) = chains(rewards).valid
    values = ((), *((0.2 * number - 0.4,) for number in range(len(rewards))))
    turn = judge(GaeTurn(discount=discount, decay=decay), episode, values)
    token = judge(GaeToken(discount=discount, decay=decay), episode, values)
    both = judge(GaeBilevel(turn_discount=discount, decay=decay), episode, values)
    assert on_row(turn) == pytest.approx(on_row(token), abs=1e-9)
    assert on_row(turn) == pytest.approx(on_row(both), abs=1e-9)


def test_fork_inside_a_turn_keeps_the_turn_whole() -> None:
    """Tokens of one turn lie on two nodes; the value is taken, and learned, at the first of them."""
    first, second = trajectories(cases.fork_inside_a_turn())
    group = Group(key="g", trees=(first.tree,))
    given_values = [TrajectoryValues(trajectory=item, values=((), (0.25, 9.0), (9.0, 9.0))) for item in (first, second)]
    won, lost = with_values(GaeTurn(), group, *given_values)
    assert won.advantages == (0.0, (0.75, 0.75), (0.75, 0.75))
    assert lost.advantages == (0.0, (-0.25, -0.25), (-0.25, -0.25))
    assert won.targets == ((), (1.0, None), (None, None))


def test_turn_without_sampled_tokens_pays_the_turn_before() -> None:
    tree = cases.start("hinted")
    said = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.paid(0.25))
    tree.add(said, cases.turn(cases.tool(40)), outcome=cases.paid(1.0), ending=Ending.TERMINATED)
    (episode,) = trajectories(tree.freeze())
    assert judge(GaeTurn(), episode, ((), (0.5,), ())).advantages == (0.0, (0.75,), ())


def test_invalid_episode_needs_no_values() -> None:
    group = cases.outcome_group(None, 1.0)
    values = [TrajectoryValues(trajectory=group.valid[0], values=((), (0.5, 0.5)))]
    assert [found.advantages for found in with_values(GaeTurn(), group, *values)] == [(0.0, (0.5, 0.5))]


def test_both_rows_of_a_rewritten_episode_give_and_get_values() -> None:
    (episode,) = trajectories(cases.context_rewrite())
    before, after = episode.rows
    values = node_values(episode, [[0.1 * n for n in range(len(before))], [1.0 * n for n in range(len(after))]])
    _, first, second = values.values
    assert first == pytest.approx((0.4, 0.5))
    assert second == (5.0, 6.0)
    found = judge(GaeTurn(decay=1), episode, values.values)
    assert rounded(token_targets(found, before)) == [None] * 4 + [1.0, None]
    assert rounded(token_targets(found, after)) == [None] * 5 + [1.0, None]


def test_values_that_do_not_fit_are_refused() -> None:
    episode = published()
    with pytest.raises(InvalidInput, match="values must be of 1 episodes, got 0"):
        with_values(GaeTurn(), group_of(episode.tree))
    with pytest.raises(InvalidInput, match="values must match the path's 3 nodes, got 2"):
        judge(GaeTurn(), episode, VALUES[:2])
    with pytest.raises(InvalidInput, match="values must match the row's 11 tokens, got 1"):
        node_values(episode, [[0.0]])
    with pytest.raises(InvalidInput, match="advantages of a node must match its sampled tokens"):
        on_row(judge(GaeTurn(), episode, ((), (0.1, 0.2), (0.4,))))
