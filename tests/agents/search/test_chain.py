"""Independent episodes of one task."""

import asyncio

import pytest
from pydantic import ValidationError

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Sampling
from envgym.agents.search import STRATEGIES, strategy
from envgym.agents.search.chain import Chain
from envgym.agents.testing import CALL, char_agent, parrot_job, said
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.errors import UnknownName


def by_seed(request: GenerateRequest) -> tuple[int, ...]:
    return said(("a", CALL, "bye")[request.seed % 3])


def grow(group_size: int) -> tuple[Tree, ...]:
    policy, job = ScriptedPolicy(by_seed), parrot_job(seed=5, tree_id="g")
    grown = Chain(group_size=group_size).grow(job, char_agent(), policy, sampling=Sampling(), clock=lambda: 0.0)
    return asyncio.run(grown)


def test_a_chain_has_one_leaf_and_a_group_is_of_one_task() -> None:
    trees = grow(6)
    assert [tree.id for tree in trees] == [f"g/{member:02d}" for member in range(6)]
    assert all(len(tree.leaves) == 1 for tree in trees)
    assert len(Group(key="g", trees=trees).trajectories) == 6


def test_members_begin_alike_and_go_their_own_ways() -> None:
    trees = grow(8)
    assert {tree.seed for tree in trees} == {5}
    assert len({tree.nodes[0].edge.segments for tree in trees}) == 1
    assert len({tree.nodes[1].edge.segments for tree in trees}) > 1


def test_a_larger_group_holds_the_smaller_one() -> None:
    assert grow(8)[:3] == grow(3)


def test_strategies_are_found_by_name() -> None:
    assert strategy("chain") is STRATEGIES["chain"] is Chain
    with pytest.raises(UnknownName, match="did you mean chain"):
        strategy("chian")
    with pytest.raises(ValidationError):
        Chain(group_size=0)
