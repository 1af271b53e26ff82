"""Views of a path: turns, rows and groups of trees written down by hand."""

from dataclasses import replace
from typing import Any

import pytest

from envgym.core.trajectory import CHAT_ENV, Group, StartState, Trajectory, Turn, start_states, trajectories
from envgym.core.tree import Edge, Rewrite, Source, Tree
from envgym.core.turns import Cost, Ending, Invalid, Reward, Scored
from envgym.errors import InvalidInput
from tests.support import example_trees as cases


def turn_of(*versions: int) -> Turn:
    segments = [replace(cases.policy(10 + at), policy_version=version) for at, version in enumerate(versions)]
    return Turn(
        index=0, nodes=(1,), segments=(cases.glue(4), *segments), outcome=None, rewrite=None, cost=Cost()
    )  # fmt: skip


def test_version_of_a_turn_is_the_oldest_that_sampled_in_it() -> None:
    assert turn_of(7, 3, 5).policy_version == 3
    assert turn_of(0, 2).policy_version == 0
    assert turn_of().policy_version is None


def test_turns_have_the_nodes_segments_and_costs_between_two_turn_ends() -> None:
    tree = cases.start("turns")
    opened = tree.add(tree.root, Edge(segments=(cases.policy(10),), ends_turn=False, cost=Cost(tokens_generated=1)))
    closed = tree.add(opened, cases.turn(cases.policy(11, 12), cases.tool(30)), outcome=cases.CALL)
    anew = cases.turn(cases.prompt(1, 2), cases.policy(13), rewrite=Rewrite.SUMMARY)
    tree.add(closed, anew, outcome=cases.paid(0.5), ending=Ending.TERMINATED)
    (episode,) = trajectories(tree.freeze())
    first, second = episode.turns
    assert [(turn.index, turn.nodes, turn.rewrite) for turn in episode.turns] == [
        (0, (1, 2), None), (1, (3,), Rewrite.SUMMARY),
    ]  # fmt: skip
    assert first.segments == (cases.policy(10), cases.policy(11, 12), cases.tool(30))
    assert first.cost == Cost(tokens_generated=3, env_steps=1)
    assert (first.outcome, second.outcome) == episode.outcomes == (cases.CALL, cases.paid(0.5))
    assert episode.turn_nodes == (first.nodes, second.nodes)
    # Row 1: prompt and first turn; row 2 begins with the context that the second turn rendered anew.
    assert [(row.tree_id, row.leaf, row.rewrite) for row in episode.rows] == [
        ("turns", 3, None), ("turns", 3, Rewrite.SUMMARY),
    ]  # fmt: skip
    assert [row.turns for row in episode.rows] == [(-1, -1, -1, -1, 0, 0, 0, 0), (1, 1, 1)]
    assert [row.nodes for row in episode.rows] == [(0, 0, 0, 0, 1, 2, 2, 2), (3, 3, 3)]
    assert [len(row) for row in episode.rows] == [8, 3]
    assert episode.rows[1].segments == (cases.prompt(1, 2), cases.policy(13))
    assert episode.num_sampled == 4


def test_an_action_that_was_cut_is_a_turn_without_an_outcome() -> None:
    tree = cases.start("cut")
    first = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.paid(0.25))
    opened = tree.add(first, Edge(segments=(cases.policy(11),), ends_turn=False))
    tree.add(opened, Edge(segments=(), ends_turn=False), ending=Ending.TRUNCATED_TOKENS)
    (episode,) = trajectories(tree.freeze())
    assert episode.turn_nodes == tuple(turn.nodes for turn in episode.turns) == ((1,), (2, 3))
    assert episode.outcomes == tuple(turn.outcome for turn in episode.turns) == (cases.paid(0.25), None)


def test_a_reward_is_read_without_joining_turns() -> None:
    (episode,) = trajectories(cases.outcome_tree("paid", 1.0))
    assert (episode.reward, "turns" in vars(episode)) == (Scored(value=1.0, components={"answer": 1.0}), False)


def test_a_turn_that_was_begun_anew_in_its_middle_says_why() -> None:
    tree = cases.start("middle")
    opened = tree.add(tree.root, Edge(segments=(cases.policy(10),), ends_turn=False))
    anew = cases.turn(cases.prompt(1), cases.policy(11), rewrite=Rewrite.TEMPLATE)
    tree.add(opened, anew, outcome=cases.paid(1.0), ending=Ending.TERMINATED)
    (episode,) = trajectories(tree.freeze())
    assert [turn.rewrite for turn in episode.turns] == [Rewrite.TEMPLATE]
    assert [row.turns for row in episode.rows] == [(-1, -1, -1, -1, 0), (0, 0)]


def test_an_ending_on_a_node_of_its_own_is_no_turn() -> None:
    tree = cases.start("cut")
    first = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.paid(0.25))
    tree.add(first, Edge(segments=(), ends_turn=False), ending=Ending.TRUNCATED_BUDGET)
    (episode,) = trajectories(tree.freeze())
    assert [turn.nodes for turn in episode.turns] == [(1,)]
    assert episode.reward == Scored(value=0.25, components={"answer": 0.25})
    assert episode.ending is Ending.TRUNCATED_BUDGET
    assert episode.is_valid


def test_an_invalid_turn_makes_the_reward_invalid_with_its_reason() -> None:
    (episode,) = trajectories(cases.outcome_tree("dead", None))
    assert episode.reward == Invalid(cause=Ending.ERROR_TOOL_INFRA, reason="sandbox died")
    assert not episode.is_valid


@pytest.mark.parametrize("leaf", [-1, 0, 3, 4])
def test_an_episode_ends_at_a_leaf_of_its_tree(leaf: int) -> None:
    tree = cases.shared_prefix_both_signs()  # root, shared, and the leaves 2 and 3
    two = replace(tree, nodes=(*tree.nodes[:3],))
    assert Trajectory(tree=two, leaf=2).path == (0, 1, 2)
    with pytest.raises(InvalidInput, match=r"leaf must be one of \(2,\), got"):
        Trajectory(tree=two, leaf=leaf)


def test_an_episode_is_shown_in_one_line_with_its_reward_or_why_there_is_none() -> None:
    paid = cases.outcome_tree("paid", 0.5)
    imported: dict[str, Any] = {"source": Source.DEMONSTRATION, "env_id": f"{CHAT_ENV}rows"}
    trees = [
        paid,
        replace(paid, **imported),  # its components say that the row had a reward
        replace(_ended_with(Scored(value=0.0)), **imported),
        replace(_ended_with(Invalid(cause=Ending.ERROR_ENV, reason="gone")), source=Source.DEMONSTRATION),
    ]
    episodes = [episode for tree in trees for episode in trajectories(tree)]
    assert [episode.has_reward for episode in episodes] == [True, True, False, True]
    rewards = ["0.5", "0.5", "none", "invalid (gone)"]
    assert [repr(episode) for episode in episodes] == [
        f"<Trajectory {tree.env_id} {tree.task_id}: {episode.ending.value}, reward {reward}, "
        f"1 turns, {episode.num_sampled} sampled tokens>"
        for tree, episode, reward in zip(trees, episodes, rewards, strict=True)
    ]


def _ended_with(reward: Reward) -> Tree:
    tree = cases.start("ended")
    outcome = replace(cases.paid(0.0), reward=reward)
    tree.add(tree.root, cases.turn(cases.policy(10)), outcome=outcome, ending=Ending.TERMINATED)
    return tree.freeze()


def test_an_episode_may_end_at_the_root() -> None:
    tree = cases.start("nothing")
    tree.end(tree.root, Ending.ERROR_ENV, error="no reset")
    (episode,) = trajectories(tree.freeze())
    assert episode.turns == ()
    assert episode.reward == Invalid(cause=Ending.ERROR_ENV, reason="no reset")
    assert [row.turns for row in episode.rows] == [(-1,) * 4]


def test_a_group_holds_the_trees_of_one_task() -> None:
    first, second = cases.outcome_tree("a", 1.0), cases.outcome_tree("b", 0.0)
    group = Group(key="k", trees=(first, second))
    assert [episode.tree.id for episode in group.trajectories] == ["a", "b"]
    other: Tree = replace(second, task_key="another")
    with pytest.raises(InvalidInput, match="group must hold trees of one task"):
        Group(key="k", trees=(first, other))
    assert Group(key="none", trees=()).valid == ()


def test_episodes_go_on_from_where_a_turn_ended_and_its_episode_did_not() -> None:
    # 0 root, 1 a turn, 2 half a turn below it, 3 its end, 4 the last turn
    tree = cases.start("start")
    first = tree.add(tree.root, cases.turn(cases.policy(10)), outcome=cases.CALL)
    half = tree.add(first, Edge(segments=(cases.policy(11),), ends_turn=False))
    second = tree.add(half, cases.turn(cases.policy(12)), outcome=cases.paid(0.5))
    tree.add(second, cases.turn(cases.policy(13)), outcome=cases.paid(1.0), ending=Ending.TERMINATED)
    recorded = tree.freeze()
    assert [state.node for state in start_states(recorded)] == [1, 3]
    (episode,) = trajectories(recorded)
    assert [state.turns for state in start_states(recorded)] == [episode.turns[:1], episode.turns[:2]]
    for node in (-1, 0, 2, 4, 5, 6):
        with pytest.raises(InvalidInput, match="start state must be one where a turn ended and the episode went on"):
            StartState(tree=recorded, node=node)
