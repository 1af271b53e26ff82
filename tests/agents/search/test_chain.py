"""Independent episodes of one task."""

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest
from envgym.agents.search.chain import Chain
from envgym.agents.search.protocol import SEARCH
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import UnknownName
from tests.agents.search.growing import answer, grow
from tests.support.parrots import CALL, char_agent, said


def by_seed(request: GenerateRequest) -> tuple[int, ...]:
    return said(("a", CALL, "bye")[request.seed % 3])


def chains(group_size: int) -> tuple[Tree, ...]:
    return grow(Chain(), ScriptedPolicy(by_seed), group_size=group_size, seed=5, agent=char_agent()).trees


def test_a_chain_has_one_leaf_and_a_group_is_of_one_task() -> None:
    trees = chains(6)
    assert [tree.id for tree in trees] == [f"g/{member:02d}" for member in range(6)]
    assert all(len(tree.leaves) == 1 for tree in trees)
    assert len(Group(key="g", trees=trees).trajectories) == 6


def test_members_begin_alike_and_go_their_own_ways() -> None:
    trees = chains(8)
    assert {tree.seed for tree in trees} == {5}
    assert len({tree.nodes[0].edge.segments for tree in trees}) == 1
    assert len({tree.nodes[1].edge.segments for tree in trees}) > 1


def test_a_larger_group_holds_the_smaller_one() -> None:
    assert chains(8)[:3] == chains(3)


def test_the_answer_is_one_episode_with_nothing_to_choose() -> None:
    tree = answer(Chain(), ScriptedPolicy(by_seed), agent=char_agent())
    assert (tree.id, len(tree.leaves)) == ("g", 1)
    assert Chain().selection is None


def test_strategies_are_found_by_name() -> None:
    assert SEARCH.load("chain") is Chain
    with pytest.raises(UnknownName, match="did you mean chain"):
        SEARCH.load("chian")
