"""PROF: published counts and agreements, who survives, and what cannot be ranked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.trajectory import Group
from envgym.core.tree import Annotation, Tree
from envgym.errors import InvalidInput
from envgym.trainer.methods.annotators.base import annotate_trees
from envgym.trainer.methods.filters.prof import Prof, split_removals
from tests.support.credit_trees import chain
from tests.support.example_trees import branch_after_a_tool_call, outcome_group

Steps = list[float] | None
"""Values of an episode's turns; None: it has none."""


def group(key: str, *episodes: tuple[float, Steps]) -> Group:
    """Build a group of chains from (outcome, values of its turns)."""
    trees: list[Tree] = []
    found: dict[str, list[Annotation]] = {}
    for number, (outcome, steps) in enumerate(episodes):
        name = f"{key}/{number}"
        trees.append(chain(name, [*[0.0] * (len(steps or [0.0, 0.0]) - 1), outcome]))
        found[name] = [
            Annotation(name="process", level="turn", node=node, value=value)
            for node, value in enumerate(steps or (), start=1)
        ]
    return annotate_trees(Group(key=key, trees=tuple(trees)), found)


PUBLISHED = group("g", (1.0, [0.9, 0.8]), (1.0, [0.4, 0.6]), (0.0, [0.7, 0.2]), (0.0, [0.9, 0.9]))


@pytest.mark.parametrize(
    "correct, wrong, removed", [(6, 2, 4), (5, 3, 3), (4, 4, 2), (2, 6, 0), (8, 0, 4), (0, 8, 0), (1, 1, 1), (3, 0, 3)]
)
def test_published_counts(correct: int, wrong: int, removed: int) -> None:
    assert split_removals(correct, wrong, 4) == (removed, min(4, correct + wrong) - removed)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_as_many_are_removed_as_asked_for_and_none_twice(correct: int, wrong: int, remove: int) -> None:
    found = split_removals(correct, wrong, remove)
    assert sum(found) == min(remove, correct + wrong)
    assert 0 <= found.correct <= correct
    assert 0 <= found.wrong <= wrong


def test_published_agreements() -> None:
    # m = 5.4 / 8 = .675; s = 2 (.85 - m), 2 (.5 - m), -2 (.45 - m), -2 (.9 - m)
    steps = [(True, [0.9, 0.8]), (True, [0.4, 0.6]), (False, [0.7, 0.2]), (False, [0.9, 0.9])]
    found = [Prof().agreement(values, 0.675, is_correct=correct) for correct, values in steps]
    assert found == pytest.approx([0.35, -0.35, 0.45, -0.45])


def test_the_least_fitting_of_each_side_are_removed() -> None:
    result = Prof(remove=2)([PUBLISHED])
    assert [[tree.id for tree in kept.trees] for kept in result.kept] == [["g/0", "g/2"]]
    ((dropped, reason),) = result.dropped
    assert ([tree.id for tree in dropped.trees], reason) == (["g/1", "g/3"], "process_disagrees")


def test_the_mean_is_that_of_the_whole_batch() -> None:
    """Alone, both correct episodes of the first group agree by +.1 and -.1; the penalty and the order stay the same."""
    high = group("h", (1.0, [5.0, 5.0]), (0.0, [5.0, 5.0]))
    prof = Prof(remove=1)
    assert [tree.id for tree in prof([PUBLISHED, high]).kept[0].trees] == ["g/0", "g/1", "g/2"]
    assert [tree.id for tree in prof([PUBLISHED]).kept[0].trees] == ["g/0", "g/1", "g/2"]


def test_too_short_and_too_long_episodes_go_first() -> None:
    made = group("g", (1.0, [9.0]), (1.0, [0.1, 0.1]), (1.0, [0.2] * 3), (0.0, [0.5, 0.5]))
    result = Prof(remove=1, most=2)([made])
    assert [tree.id for tree in result.dropped[0][0].trees] == ["g/2"]  # .2 · 3 turns: 10 less than any
    assert Prof().agreement([9.0], 0.0, is_correct=True) == 18.0 - 10.0
    assert Prof().agreement([], 0.0, is_correct=True) == -10.0


def test_removing_none_keeps_every_group() -> None:
    assert Prof(remove=0)([PUBLISHED]).kept == (PUBLISHED,)


def test_what_cannot_be_ranked_is_removed_and_named() -> None:
    made = group("g", (1.0, None), (1.0, [0.5, 0.5]), (0.0, [0.5, 0.5]))
    result = Prof(remove=0)([made])
    assert [tree.id for tree in result.kept[0].trees] == ["g/1", "g/2"]
    assert [(len(part.trees), reason) for part, reason in result.dropped] == [(1, "not_annotated")]
    reasons = [reason for _, reason in Prof()([outcome_group(1, 0), outcome_group(None), PUBLISHED]).dropped]
    assert reasons == ["not_annotated", "no_valid_episode", "process_disagrees"]


def test_trees_of_several_episodes_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"tree must hold one episode, got several .*search.name=chain"):
        Prof()([Group(key="g", trees=(branch_after_a_tool_call(),))])
