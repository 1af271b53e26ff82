"""Paths joined into trees."""

from envgym.agents.loop.path import PathNode
from envgym.agents.rollout.recorder import MidTurnFork, record_tree
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Edge, Node, SearchStats, Tree
from envgym.core.turns import Cost, Ending
from tests.support.parrots import parrot_job


def edge(*ids: int, seconds: float = 0.0) -> Edge:
    segments = (Segment(origin=Origin.PROMPT, token_ids=ids),) if ids else ()
    return Edge(segments=segments, ends_turn=False, cost=Cost(seconds=seconds))


def test_leaves_of_one_root_join_into_a_tree_that_shares_their_links() -> None:
    root = PathNode(None, edge(1, seconds=2.0))
    trunk = PathNode(root, edge(2))
    leaves = [
        PathNode(trunk, edge(3), ending=Ending.TERMINATED),
        PathNode(trunk, edge(4), ending=Ending.ERROR_ENV, error="x"),
        PathNode(root, edge(5), ending=Ending.TERMINATED),
    ]
    tree = record_tree(leaves, parrot_job())
    assert [node.parent for node in tree.nodes] == [None, 0, 1, 1, 0]
    assert [node.edge.segments[0].token_ids for node in tree.nodes] == [(1,), (2,), (3,), (4,), (5,)]
    assert [node.ending for node in tree.nodes] == [None, None, *(leaf.ending for leaf in leaves)]
    assert (tree.nodes[3].error, tree.cost.seconds) == ("x", 2.0)


def test_a_root_may_be_the_leaf() -> None:
    tree = record_tree([PathNode(None, edge(), ending=Ending.ERROR_ENV, error="x")], parrot_job())
    assert (tree.leaves, tree.nodes[0].error) == ((0,), "x")


def test_forks_inside_an_edge_cut_it_once_at_each_token_and_share_what_comes_before() -> None:
    root = PathNode(None, edge(1))
    first = PathNode(root, edge(2, 3, 4, 5), ending=Ending.TERMINATED)
    others = [PathNode(root, edge(*ids), ending=Ending.TERMINATED) for ids in ((2, 3, 6), (2, 7), (2, 3, 8, 9))]
    forks = {node: MidTurnFork(first, at) for node, at in zip(others, (2, 1, 2), strict=True)}
    tree = record_tree([first, *others], parrot_job(), forks=forks)
    paths = {tuple(token for node in path(tree, leaf) for token in tokens(node)) for leaf in tree.leaves}
    assert paths == {(1, 2, 3, 4, 5), (1, 2, 3, 6), (1, 2, 7), (1, 2, 3, 8, 9)}
    assert sorted(tokens(node) for node in tree.nodes) == [(1,), (2,), (3,), (4, 5), (6,), (7,), (8, 9)]


def test_a_fork_of_a_fork_keeps_the_tokens_of_both() -> None:
    root = PathNode(None, edge(1))
    first = PathNode(root, edge(2, 3, 4), ending=Ending.TERMINATED)
    second = PathNode(root, edge(2, 5, 6), ending=Ending.TERMINATED)
    third = PathNode(root, edge(2, 5, 7), ending=Ending.TERMINATED)
    forks = {second: MidTurnFork(first, 1), third: MidTurnFork(second, 2)}
    tree = record_tree([first, second, third], parrot_job(), forks=forks)
    assert sorted(tokens(node) for node in tree.nodes) == [(1,), (2,), (3, 4), (5,), (6,), (7,)]


def test_spending_of_a_node_is_what_it_knew_and_all_below() -> None:
    root = PathNode(None, edge(1, seconds=4.0))
    trunk = PathNode(root, edge(2, seconds=2.0))
    leaf = PathNode(trunk, edge(3, seconds=1.0), ending=Ending.TERMINATED)
    tree = record_tree([leaf], parrot_job(), stats={root: SearchStats(spent=Cost(env_steps=5)), trunk: SearchStats()})
    spent = [node.stats.spent if node.stats is not None else None for node in tree.nodes]
    assert spent == [Cost(env_steps=5, seconds=3.0), Cost(seconds=1.0), None]


def tokens(node: Node) -> tuple[int, ...]:
    return tuple(token for segment in node.edge.segments for token in segment.token_ids)


def path(tree: Tree, index: int) -> list[Node]:
    parent = tree.nodes[index].parent
    return [*(path(tree, parent) if parent is not None else []), tree.nodes[index]]
