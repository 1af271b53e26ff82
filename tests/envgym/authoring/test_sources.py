"""Task sources: disjoint splits, stable indices, clear refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.authoring import GeneratedTasks, ListTasks, TaskDraft
from envgym.authoring.sources import hint_metadata, step_metadata
from envgym.core.tasks import Split, Task, distinct_tasks, split_of
from envgym.errors import InvalidInput
from envgym.seeds import generator
from tests.support.env_shapes import draw_number, draw_product


def draft(number: int, words: str = "") -> TaskDraft:
    return TaskDraft(prompt=f"{words}{number}?", payload={"n": number})


def test_drafts_go_where_their_content_says_whatever_their_wording_and_order() -> None:
    drafts = [draft(n) for n in range(100)]
    source, other = ListTasks(drafts), ListTasks([draft(n, "Please: ") for n in reversed(range(100))])
    assert source.size(Split.TRAIN) + source.size(Split.TEST) == 100
    for split in Split:
        keys = {source.task(split, i).key for i in range(source.size(split))}
        assert keys == {other.task(split, i).key for i in range(other.size(split))}
        assert all(split_of(source.task(split, i).payload) is split for i in range(source.size(split)))


def test_a_task_keeps_its_own_split_and_id() -> None:
    task = Task(id="gsm-7", prompt="?", payload={"n": 1}, split=Split.TEST)
    assert ListTasks([task]).task(Split.TEST, 0) is task


def test_the_same_content_on_both_sides_is_refused() -> None:
    tasks = [Task(id=split.value, prompt=split.value, payload={"n": 1}, split=split) for split in Split]
    with pytest.raises(InvalidInput, match="content must be in one split only, got train"):
        ListTasks(tasks)


def test_an_id_belongs_to_one_task_of_its_split() -> None:
    tasks = [Task(id="7", prompt="?", payload={"n": n}, split=Split.TEST) for n in range(3)]
    with pytest.raises(InvalidInput, match=r"task id must be unique in its split, got '7' twice \(test of ListTasks\)"):
        ListTasks(tasks)
    with pytest.raises(InvalidInput, match="task id must be UTF-8 text"):
        ListTasks([replace(tasks[0], id="\ud800")])
    train = Task(id="7", prompt="?", payload={"n": 3}, split=Split.TRAIN)
    assert ListTasks([tasks[0], train]).size(Split.TEST) == 1  # the split is part of the name


@pytest.mark.parametrize("index", [-1, 100])
def test_an_index_beyond_a_list_is_refused(index: int) -> None:
    with pytest.raises(InvalidInput, match=r"index must lie in \[0, "):
        ListTasks([draft(n) for n in range(10)]).task(Split.TRAIN, index)


@given(st.integers(0, 2**31 - 1), st.sampled_from(Split))
def test_a_generated_task_depends_on_name_seed_split_and_index_alone(index: int, split: Split) -> None:
    source = GeneratedTasks(draw_product, name="products", seed=1)
    task = source.task(split, index)
    assert GeneratedTasks(draw_product, name="products", seed=1).task(split, index) == task
    assert (task.id, task.split, split_of(task.payload)) == (f"{split}/{index}", split, split)


def test_a_generated_task_is_the_first_draft_of_its_split() -> None:
    draws = generator("halving", 0, "test", 4)
    first = next(item for item in iter(lambda: draw_number(draws), None) if split_of(item.payload) is Split.TEST)
    assert GeneratedTasks(draw_number, name="halving").task(Split.TEST, 4).payload == first.payload


def test_generated_splits_share_nothing_across_indices_and_seeds() -> None:
    def keys(split: Split) -> set[str]:
        sources = [GeneratedTasks(draw_number, name="halving", seed=seed) for seed in range(3)]
        return {source.task(split, index).key for source in sources for index in range(200)}

    assert keys(Split.TRAIN).isdisjoint(keys(Split.TEST))


def test_a_test_fraction_moves_the_wall() -> None:
    source = GeneratedTasks(draw_number, name="halving", test_fraction=0.9)
    assert len(list(distinct_tasks(source, Split.TEST, 200))) == 200


def test_a_generator_that_never_reaches_a_split_is_refused() -> None:
    def constant(generator: np.random.Generator) -> TaskDraft:
        return draft(1)

    other = next(split for split in Split if split is not split_of({"n": 1}))
    with pytest.raises(InvalidInput, match=f"generator ones must reach the {other} split within 1000 draws"):
        GeneratedTasks(constant, name="ones").task(other, 0)
    with pytest.raises(InvalidInput, match="index must be at least 0, got -1"):
        GeneratedTasks(constant, name="ones").task(other, -1)


def test_steps_are_a_hint_tiers_and_sub_goals_and_none_are_no_keys() -> None:
    assert step_metadata(["a"]) == {"hints": {"steps": ["a"]}, "sub_goals": ["a"]}, "the step is the whole solution"
    assert step_metadata(["a", "b"]) == {"hint": "a", "hints": {"steps": ["a", "b"]}, "sub_goals": ["a", "b"]}
    assert hint_metadata(["a", "b"], tier="guidance") == {"hint": "a", "hints": {"guidance": ["a", "b"]}}
    assert step_metadata([]) == hint_metadata([], tier="guidance") == {}
