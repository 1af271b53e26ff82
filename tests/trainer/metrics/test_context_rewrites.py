"""Contexts rendered anew are counted once a turn, and stop the run where none may be."""

import pytest

from envgym.core.trajectory import Group
from envgym.core.tree import Rewrite
from envgym.core.turns import Ending
from envgym.errors import RunError
from envgym.trainer.metrics.rollout import check_context_rewrites, context_rewrite_metrics
from tests.support import example_trees as cases


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


def test_without_rewrites_there_is_no_drift() -> None:
    groups = [cases.outcome_group(1, 0, None)]
    assert context_rewrite_metrics(groups) == {"context_rewrites/turns": 0.0, "context_rewrites/episodes": 0.0}
    assert context_rewrite_metrics([]) == {"context_rewrites/turns": 0.0, "context_rewrites/episodes": 0.0}
    check_context_rewrites(groups, step=1)


def test_the_first_rewritten_turn_stops_a_run_that_must_have_none() -> None:
    got = r"got 2 turns of others, the first in turn 1 of shared \(TEMPLATE\) \(step 3\)"
    with pytest.raises(RunError, match=rf"^contexts must continue .*, {got}; .*\.$"):
        check_context_rewrites([cases.outcome_group(1, 0), shared_rewrite()], step=3)
