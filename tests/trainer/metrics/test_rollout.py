"""What is measured of a rollout: rewards, rows that are trained or dropped, contexts that are rendered anew."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Rewrite
from envgym.core.turns import Ending
from envgym.errors import RunError
from envgym.stats import estimate_success
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.filters.variance import KeepAll, TopVariance, ZeroVariance
from envgym.trainer.methods.protocols import Filter, FilterResult
from envgym.trainer.metrics.rollout import (
    check_context_rewrites,
    context_rewrite_metrics,
    env_metrics,
    filter_metrics,
    rollout_metrics,
    row_metrics,
)
from tests.support import example_trees as cases


def test_success_counts_valid_episodes_and_its_interval_counts_groups() -> None:
    groups = [cases.outcome_group(1, 1, None), cases.outcome_group(0, 1), cases.outcome_group(0, 0)]
    found = rollout_metrics(groups, success_at=1.0)
    # Group means 1, .5, 0 spread so much that 3 groups are 3 trials: Wilson's 1/2 -+ sqrt(z^2 (1/12 + z^2/36)) /
    # (1 + z^2/3) = 1/2 -+ 0.854424 / 2.280486, with z^2 = 3.841459
    assert found["train/success"] == 0.5
    assert found["train/success_low"] == pytest.approx(0.125335, abs=1e-5)
    assert found["train/success_high"] == pytest.approx(0.874665, abs=1e-5)
    assert (found["rollout/episodes"], found["rollout/invalid"], found["rollout/groups"]) == (7.0, 1.0, 3.0)
    assert found["reward/mean"] == pytest.approx(3 / 6)
    assert found["reward/answer"] == pytest.approx(3 / 6)
    assert found["ending/TERMINATED"] == pytest.approx(6 / 7)
    assert found["ending/ERROR_TOOL_INFRA"] == pytest.approx(1 / 7)


@pytest.mark.parametrize("rewards", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("num_groups", [1, 8])
def test_interval_of_groups_is_that_of_an_evaluation(rewards: tuple[int, int], num_groups: int) -> None:
    found = rollout_metrics([cases.outcome_group(*rewards)] * num_groups, success_at=1.0)
    tasks = {str(number): rewards for number in range(num_groups)}
    expected = estimate_success(tasks).interval
    assert (found["train/success_low"], found["train/success_high"]) == (expected.low, expected.high)


def test_envs_of_a_mixture_are_told_apart_and_share_the_groups() -> None:
    groups = [cases.outcome_group(1, 0), cases.outcome_group(1, 1), cases.outcome_group(0, None), cases.outcome_group()]
    found = env_metrics(["b", "a", "b", "c"], groups, success_at=1.0)
    assert found == {
        "envs/a/groups": 1.0,
        "envs/a/success": 1.0,
        "envs/a/reward": 1.0,
        "envs/b/groups": 2.0,
        "envs/b/success": 0.25,  # mean of the groups' 1/2 and 0
        "envs/b/reward": pytest.approx(1 / 3),  # of the valid episodes' 1, 0 and 0
        "envs/c/groups": 1.0,
    }


def test_group_without_valid_episode_moves_no_success() -> None:
    alone = rollout_metrics([cases.outcome_group(1, 0)], success_at=1.0)
    beside = rollout_metrics([cases.outcome_group(1, 0), cases.outcome_group(None, None)], success_at=1.0)
    assert alone["train/success"] == beside["train/success"] == 0.5
    assert "train/success" not in rollout_metrics([cases.outcome_group(None)], success_at=1.0)


def test_lengths_count_rows_and_costs_count_shared_edges_once() -> None:
    forked = Group(key="g", trees=(cases.shared_prefix_both_signs(),))
    found = rollout_metrics([forked], success_at=1.0)
    # two rows of 8 tokens; each episode sampled 3, the tree 4 (the shared turn's 2 once)
    assert found["rollout/row_tokens"] == 8.0
    assert found["rollout/sampled_tokens"] == 3.0
    assert found["cost/tokens_generated"] == 4.0
    assert found["rollout/turns"] == 2.0


def test_rewritten_episode_has_two_rows() -> None:
    found = rollout_metrics([Group(key="g", trees=(cases.context_rewrite(),))], success_at=1.0)
    assert found["rollout/rows_per_episode"] == 2.0
    assert found["rollout/row_tokens_max"] == 7.0


def test_every_drop_has_its_reason() -> None:
    groups = [
        cases.outcome_group(1, 1),
        cases.outcome_group(1, 0),
        cases.outcome_group(None),
        cases.outcome_group(0, 0),
    ]
    assert filter_metrics(ZeroVariance()(groups)) == {
        "filter/kept": 0.25,
        "filter/no_valid_episode": 0.25,
        "filter/zero_variance": 0.5,
    }


def unsaid() -> Group:
    """An episode of two rows: the second begins with a context rendered anew, and nothing was sampled from it."""
    tree = cases.start("unsaid")
    first = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.paid(1.0))
    rewritten = cases.context_rewrite().nodes[2].edge
    edge = Edge(segments=rewritten.segments[:1], ends_turn=False, rewrite=rewritten.rewrite)
    tree.add(first, edge, ending=Ending.TRUNCATED_TOKENS)
    return Group(key="unsaid", trees=(tree.freeze(), cases.outcome_tree("other", 0.0)))


def test_a_step_with_every_reason() -> None:
    groups = [
        cases.outcome_group(1, 0, None),  # 2 rows train, 1 is invalid
        cases.outcome_group(1, 1, None),  # 2 of no variance, 1 invalid all the same
        unsaid(),  # 2 train, 1 has nothing sampled
        Group(key="two", trees=(cases.context_rewrite(), cases.outcome_tree("other", 0.0))),  # 2 + 1, beyond the step
    ]
    result = ZeroVariance()(groups).at_most(2)
    credits = [credit for group in result.kept for credit in Grpo()(group)]
    assert row_metrics(result, credits, rejected=0.25) == {
        "rows/collected": 3 + 3 + 3 + 3,
        "rows/trained": 3.0,  # of 4, one was rejected whole
        "dropped/ERROR_TOOL_INFRA": 2.0,
        "dropped/correction": 1.0,
        "dropped/no_sampled_token": 1.0,
        "dropped/surplus": 3.0,
        "dropped/zero_variance": 2.0,
    }
    assert len(train_rows(credits, once=False)) == 4


def test_an_episode_that_got_no_credit_is_named() -> None:
    result = KeepAll()([cases.outcome_group(1, 0)])
    credits = Grpo()(result.kept[0])
    found = row_metrics(result, credits[:1], rejected=0.0)
    assert found == {"rows/collected": 2.0, "rows/trained": 1.0, "dropped/no_credit": 1.0}


def test_a_step_without_groups_has_no_rows() -> None:
    assert row_metrics(FilterResult((), ()), [], rejected=0.0) == {"rows/collected": 0.0, "rows/trained": 0.0}


rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=4)


@pytest.mark.parametrize("chosen", [KeepAll(), ZeroVariance(), TopVariance()])
@given(groups=st.lists(rewards, max_size=5), most=st.integers(0, 5), rejected=st.floats(0, 1))
@settings(max_examples=25)
def test_what_is_trained_on_and_what_is_dropped_add_up(
    chosen: Filter, groups: list[list[float | None]], most: int, rejected: float
) -> None:
    collected = [cases.outcome_group(*group) for group in groups]
    result = chosen(collected).at_most(most)
    credits = [credit for group in result.kept for credit in Grpo()(group)]
    found = row_metrics(result, credits, rejected=rejected)
    assert found["rows/collected"] == sum(map(len, groups))
    dropped = sum(count for name, count in found.items() if name.startswith("dropped/"))
    assert found["rows/trained"] + dropped == pytest.approx(found["rows/collected"])
    assert found["rows/trained"] == pytest.approx((1 - rejected) * len(train_rows(credits, once=False)))


def shared_rewrite() -> Group:
    """Two episodes behind one turn whose template had changed; the second loses its oldest turns, too."""
    tree = cases.start("shared")
    first = tree.add(tree.root, cases.turn(cases.policy(10), cases.glue(4)), outcome=cases.CALL)
    anew = cases.turn(cases.prompt(1, 10, 4), cases.policy(11), cases.glue(4), rewrite=Rewrite.TEMPLATE)
    second = tree.add(first, anew, outcome=cases.CALL)
    tree.add(second, cases.turn(cases.policy(12)), outcome=cases.paid(1.0), ending=Ending.TERMINATED)
    cut = cases.turn(cases.prompt(1, 4), cases.policy(13), rewrite=Rewrite.TURNS_DROPPED)
    tree.add(second, cut, outcome=cases.paid(0.0), ending=Ending.TERMINATED)
    return Group(key="group", trees=(tree.freeze(),))


def test_rewritten_turns_are_counted_by_reason_and_once_where_they_are_shared() -> None:
    plain, rewritten = cases.outcome_group(1, 0, None), Group(key="g", trees=(cases.context_rewrite(),))
    assert context_rewrite_metrics([plain, shared_rewrite(), rewritten]) == {
        "context_rewrites/turns": 3.0,  # TEMPLATE once though two episodes share it
        "context_rewrites/episodes": 3 / 6,
        "context_rewrites/TEMPLATE": 1.0,
        "context_rewrites/TURNS_DROPPED": 2.0,
    }


def test_other_conversations_of_an_episode_are_no_rewrites_and_are_counted_on_their_own() -> None:
    tree = cases.start("program")
    first = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.CALL)
    other = cases.turn(cases.prompt(2, 4), cases.policy(11), rewrite=Rewrite.CONVERSATION)
    second = tree.add(first, other, outcome=cases.CALL)
    third = cases.turn(cases.prompt(3, 4), cases.policy(12), rewrite=Rewrite.CONVERSATION)
    tree.add(second, third, outcome=cases.paid(1.0), ending=Ending.TERMINATED)
    groups = [Group(key="group", trees=(tree.freeze(),)), cases.outcome_group(1)]
    assert context_rewrite_metrics(groups) == {
        "context_rewrites/turns": 0.0,
        "context_rewrites/episodes": 0.0,
        "conversations/mean": (3 + 1) / 2,
        "conversations/max": 3.0,
    }
    assert [row.token_ids[-1] for row in groups[0].trajectories[0].rows] == [10, 11, 12]
    check_context_rewrites(groups, step=1)  # the canary does not stop


def test_without_rewrites_there_is_no_drift() -> None:
    groups = [cases.outcome_group(1, 0, None)]
    assert context_rewrite_metrics(groups) == {"context_rewrites/turns": 0.0, "context_rewrites/episodes": 0.0}
    assert context_rewrite_metrics([]) == {"context_rewrites/turns": 0.0, "context_rewrites/episodes": 0.0}
    check_context_rewrites(groups, step=1)


def test_the_first_rewritten_turn_stops_a_run_that_must_have_none() -> None:
    got = r"got 2 turns of others, the first in turn 1 of shared \(TEMPLATE\) \(step 3\)"
    with pytest.raises(RunError, match=rf"^contexts must continue .*, {got}; .*\.$"):
        check_context_rewrites([cases.outcome_group(1, 0), shared_rewrite()], step=3)
