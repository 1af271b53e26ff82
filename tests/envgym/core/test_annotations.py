"""Annotations are part of the record: written, read, and refused where they cannot be."""

import json
from dataclasses import replace
from typing import Any

import pytest

from envgym.core.serialize import tree_from_json, tree_to_json
from envgym.core.tree import Annotation, Tree
from envgym.errors import InvalidInput
from tests.support.example_trees import branch_after_a_tool_call, fork_inside_a_turn

CHAIN = branch_after_a_tool_call()  # node 1 ends a turn, nodes 2 and 3 end episodes


def annotation(level: Any = "episode", node: int = 2, **fields: Any) -> Annotation:
    return Annotation(**{"name": "judge", "level": level, "node": node, "value": 0.5, **fields})


def annotated(tree: Tree, *items: Annotation) -> Tree:
    return replace(tree, annotations=items)


def test_annotations_survive_the_way_to_disk() -> None:
    tree = annotated(
        CHAIN,
        annotation(verdict="half right"),
        annotation("turn", 1, value=-1.0),
        annotation("node", 3, value=None, error="no answer within 3 s"),
    )
    data = json.loads(json.dumps(tree_to_json(tree)))
    assert tree_from_json(data) == tree
    assert data["annotations"][2] == {"name": "judge", "level": "node", "node": 3, "error": "no answer within 3 s"}


def test_a_tree_without_annotations_is_written_as_before() -> None:
    assert "annotations" not in tree_to_json(CHAIN)


def test_annotations_are_found_by_name_and_level() -> None:
    other = annotation(name="critic", value=2.0)
    tree = annotated(CHAIN, annotation(), annotation("turn", 1), other)
    assert tree.annotated("judge", "episode") == {2: annotation()}
    assert tree.annotated("judge", "turn") == {1: annotation("turn", 1)}
    assert tree.annotated("critic", "turn") == {}


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"value": None}, "value must be left out exactly where an error says why, got (None, None)"),
        ({"error": "slow"}, "value must be left out exactly where an error says why, got (0.5, 'slow')"),
        ({"value": float("nan")}, "value must be finite, got nan (annotation judge, node 2)"),
        ({"level": "row"}, "level must be one of node, turn, episode, got row"),
    ],
)
def test_an_annotation_that_says_nothing_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        annotation(**fields)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "tree, items, sentence",
    [
        (CHAIN, [annotation(node=4)], "node of annotation judge must be 0..3, got 4"),
        (CHAIN, [annotation(node=1)], "node of annotation judge must be one where an episode ended, got 1"),
        (fork_inside_a_turn(), [annotation("turn", 1)], "must be one where a turn ended, got 1"),
        (CHAIN, [annotation(), annotation(value=1.0)], "annotation must be the only one of its name, level and node"),
    ],
)
def test_an_annotation_of_what_is_not_there_is_refused(tree: Tree, items: list[Annotation], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        annotated(tree, *items)
    assert sentence in str(caught.value)
