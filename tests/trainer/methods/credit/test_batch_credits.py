"""Laws that hold for every credit of a whole batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.credit_trees import batch_advantages
from tests.support.plugins import BATCH_CREDITS

OF_REWARDS = [build for build in BATCH_CREDITS.values() if "annotation" not in getattr(build, "model_fields", ())]
"""The others leave out episodes without annotations."""
BATCHES = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("name", BATCH_CREDITS)
def test_no_groups_and_invalid_episodes_have_no_credit(name: str) -> None:
    assert batch_advantages(BATCH_CREDITS[name]()) == []
    assert batch_advantages(BATCH_CREDITS[name](), [None, None]) == []


@pytest.mark.parametrize("name", BATCH_CREDITS)
def test_invalid_episodes_are_in_no_statistic(name: str) -> None:
    credit = BATCH_CREDITS[name]()
    assert batch_advantages(credit, [1.0, None, 0.0], [None], [1.0, 1.0]) == batch_advantages(
        credit, [1.0, 0.0], [1.0, 1.0]
    )


@settings(max_examples=15)
@given(BATCHES, st.randoms(use_true_random=False))
def test_order_of_groups_does_not_matter(batch: list[list[float]], random: object) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    for build in OF_REWARDS:
        whole = iter(batch_advantages(build(), *batch))
        of_groups = [[next(whole) for _ in rewards] for rewards in batch]
        shuffled = batch_advantages(build(), *(batch[place] for place in order))
        assert shuffled == pytest.approx([value for place in order for value in of_groups[place]], abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("name", ["lite_ppo", "bnpo", "gdpo"])
def test_equal_rewards_everywhere_have_advantage_zero(name: str) -> None:
    assert batch_advantages(BATCH_CREDITS[name](), [0.3, 0.3], [0.3]) == pytest.approx([0.0] * 3, abs=1e-9)
