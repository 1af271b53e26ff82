"""Every row collected is accounted for: trained on, or dropped for one reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Edge
from envgym.core.turns import Ending
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.filters.variance import KeepAll, TopVariance, ZeroVariance
from envgym.trainer.methods.protocols import Filter, FilterResult
from envgym.trainer.metrics.rollout import row_metrics
from tests.support import example_trees as cases


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
