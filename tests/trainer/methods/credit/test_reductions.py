"""Simple cases in which a credit is another credit, up to a factor."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.trainer.methods.credit.deep_search import DeepSearch
from envgym.trainer.methods.credit.min_form import MinForm
from envgym.trainer.methods.credit.outcome import DrGrpo, Grpo, Opo, Rloo
from envgym.trainer.methods.credit.positions import MtGrpo
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.credit.spo import Spo
from envgym.trainer.methods.credit.tree_outcome import TreePo
from envgym.trainer.methods.credit.tree_rl import TreeRl
from envgym.trainer.methods.credit.turn_grpo import TurnGrpo
from envgym.trainer.methods.protocols import Credit
from tests.support.credit_trees import chains, per_node

Turns = st.SearchStrategy[list[list[float]]]
REWARDS = st.floats(-5, 5)
TURNS = st.lists(st.lists(REWARDS, min_size=1, max_size=4), min_size=1, max_size=5)
SINGLE = st.lists(st.lists(REWARDS, min_size=1, max_size=1), min_size=1, max_size=6)
CORRECT = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=1), min_size=1, max_size=6)
AT_END = st.builds(
    lambda rewards, length: [[0.0] * (length - 1) + [reward] for reward in rewards],
    st.lists(REWARDS, min_size=1, max_size=6),
    st.integers(1, 4),
)


@pytest.mark.parametrize(
    "credit, turns, other, factor, within",
    [
        pytest.param(DeepSearch(), CORRECT, DrGrpo(), 2, 1e-12, id="deep search of single turns"),
        pytest.param(MinForm(), SINGLE, Rloo(), 1, 1e-9, id="min form of single turns"),
        pytest.param(MtGrpo(), AT_END, Grpo(), 1, 1e-6, id="MT-GRPO of outcomes alone"),
        pytest.param(Opo(), SINGLE, DrGrpo(), 1, 1e-9, id="OPO of equal lengths"),
        pytest.param(Sibling(), TURNS, TurnGrpo(), 1, 1e-9, id="sibling of chains"),
        pytest.param(Sibling(), SINGLE, Rloo(), 1, 1e-9, id="sibling of single turns"),
        pytest.param(Spo(), TURNS, DrGrpo(), 1, 1e-9, id="SPO of chains"),
        pytest.param(TreePo(), AT_END, DrGrpo(), 1, 1e-9, id="TreePO of chains"),
        pytest.param(TreeRl(), TURNS, Rloo(), 2, 1e-9, id="TreeRL of chains"),
        pytest.param(TurnGrpo(), AT_END, Rloo(), 1, 1e-12, id="turn GRPO of rewards at the end"),
    ],
)
@settings(max_examples=20)
@given(data=st.data())
def test_simple_case_is_another_credit(
    credit: Credit, turns: Turns, other: Credit, factor: int, within: float, data: st.DataObject
) -> None:
    group = chains(*data.draw(turns))
    for found, expected in zip(per_node(credit(group)), per_node(other(group)), strict=True):
        assert found == pytest.approx([factor * advantage for advantage in expected], abs=within)
