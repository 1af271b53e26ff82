"""Splits are disjoint by content; seeds derive from names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import canonical, content_hash
from envgym.core.tasks import Split, Task, distinct_tasks, split_of
from envgym.errors import InvalidInput, UnknownName
from envgym.seeds import derive_seed, generator

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,  # trees of 100 leaves take seconds to draw, and tell no more
)


@given(st.dictionaries(st.text(), JSON))
def test_split_depends_on_content_alone(payload: dict[str, object]) -> None:
    backwards = dict(reversed(payload.items()))
    assert split_of(payload) is split_of(backwards)  # type: ignore[arg-type]  # generated JSON
    assert content_hash(payload) == content_hash(backwards)  # type: ignore[arg-type]  # generated JSON


def test_canonical_form_is_the_documented_one() -> None:
    assert canonical({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'


def test_a_fifth_of_the_payloads_is_test() -> None:
    share = sum(split_of({"n": n}) is Split.TEST for n in range(10_000)) / 10_000
    assert abs(share - 0.2) < 0.016  # four standard errors: 4 * sqrt(.2 * .8 / 10000)
    assert {split_of({"n": n}, 0.0) for n in range(100)} == {Split.TRAIN}
    assert {split_of({"n": n}, 1.0) for n in range(100)} == {Split.TEST}


class _Repeating:
    """Three different tasks, then the same again and again."""

    def size(self, split: Split) -> int | None:
        return None

    def task(self, split: Split, index: int) -> Task:
        return Task(id=f"{split}/{index}", prompt=f"wording {index}", payload={"n": index % 3}, split=split)


def test_distinct_tasks_skips_other_wordings_of_the_same_problem() -> None:
    assert [task.id for task in distinct_tasks(_Repeating(), Split.TEST, 3, start=1)] == ["test/1", "test/2", "test/3"]
    with pytest.raises(InvalidInput, match=r"at most what the test split holds \(3 found\), got 4"):
        list(distinct_tasks(_Repeating(), Split.TEST, 4))


def test_unknown_split_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean train"):
        Split.parse("trian", where="demo")


def test_seeds_depend_on_every_name_and_its_type() -> None:
    seeds = {derive_seed(1, 2), derive_seed(2, 1), derive_seed(12), derive_seed("1", 2), derive_seed("12")}
    assert len(seeds) == 5
    assert derive_seed(1, 2) == derive_seed(1, 2)
    assert generator(7, "x").integers(1000) == generator(7, "x").integers(1000)
