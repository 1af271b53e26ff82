"""SCRL's credit of blocks: hand case, reduction, laws, a run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Action, Observation
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Scored, TurnOutcome
from envgym.errors import InvalidInput
from envgym.trainer.methods.credit.outcome import Grpo
from envgym.trainer.methods.credit.scrl import Scrl
from tests.support.credit_trees import chains, group_of, per_node
from tests.support.example_trees import start
from tests.support.graded import train_steps

Z = 0.707106  # of one success among two: 0.5 / 0.707107


def episode(name: str, tokens: list[str], components: dict[str, float]) -> Tree:
    ids = tuple(range(10, 10 + len(tokens)))
    logprobs = (-1.0,) * len(ids)
    said = Segment(
        origin=Origin.POLICY, token_ids=ids, token_strings=tuple(tokens), behavior_logprobs=logprobs, policy_version=0
    )
    reward = Scored(value=sum(components.values()), components=components)
    outcome = TurnOutcome(action=Action("".join(tokens)), observation=Observation(), reward=reward)
    builder = start(name)
    builder.add(builder.root, Edge(segments=(said,), ends_turn=True), outcome=outcome, ending=Ending.TERMINATED)
    return builder.freeze()


def paid(*blocks: float, form: float = 1.0) -> dict[str, float]:
    return {**{f"p{number}": value for number, value in enumerate(blocks, start=1)}, "format": form}


def credited(*trees: Tree) -> list[tuple[float, ...]]:
    found = []
    for credit in Scrl()(group_of(*trees)):
        root, *nodes = credit.advantages
        assert root == 0.0
        found.append(tuple(value for node in nodes if isinstance(node, tuple) for value in node))
    return found


def test_each_block_gets_the_advantage_of_its_own_answer() -> None:
    # block 1: rewards 1, 1, none stands out; block 2: 1, 0. A token belongs to the block that it has a character of.
    tokens = ["so ", "<p", "1>3</p1", ">", " then ", "<p2>", "4", "</p2>", "!"]
    first, second = credited(episode("a", tokens, paid(1, 1)), episode("b", tokens, paid(1, 0)))
    assert first == pytest.approx((0, 0, 0, 0, 0, Z, Z, Z, 0), abs=1e-5)
    assert second == pytest.approx((0, 0, 0, 0, 0, -Z, -Z, -Z, 0), abs=1e-5)


def test_badly_formatted_episode_counts_in_the_columns_and_is_not_credited() -> None:
    tokens = ["<p1>", "3", "</p1>"]
    first, second = credited(episode("a", tokens, paid(1)), episode("b", ["<p1>", "3"], paid(0, form=0)))
    assert first == pytest.approx((Z, Z, Z), abs=1e-5)
    assert second == (0.0, 0.0)


def test_tokens_that_do_not_spell_a_block_are_refused() -> None:
    good = episode("a", ["<p1>", "3", "</p1>"], paid(1))
    with pytest.raises(InvalidInput, match="sampled tokens must spell block <p1>, got 3"):
        Scrl()(group_of(good, episode("b", ["3"], paid(1))))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6))
def test_one_block_of_all_tokens_is_grpo_and_so_is_a_group_without_blocks(rewards: list[float]) -> None:
    tokens = ["<p1>", "3", "</p1>"]
    trees = [episode(f"t{number}", tokens, {"p1": r, "format": 1.0}) for number, r in enumerate(rewards)]
    plain: Group = chains(*([reward] for reward in rewards))
    expected = [advantage for (advantage,) in per_node(Grpo()(plain))]
    assert credited(*trees) == [pytest.approx((advantage,) * 3) for advantage in expected]
    assert per_node(Scrl()(plain)) == per_node(Grpo()(plain))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=5))
def test_columns_of_well_written_groups_sum_to_zero(specs: list[tuple[int, bool]]) -> None:
    tokens = [f"<p{number}>x</p{number}>" for number in (1, 2, 3)]
    trees = [
        episode(f"t{number}", tokens, paid(*(float(place < prefix) for place in range(3))))
        for number, (prefix, _) in enumerate(specs)
    ]
    for column in zip(*credited(*trees), strict=True):
        assert sum(column) == pytest.approx(0.0, abs=1e-6)


def test_run_mixes_chains_of_subproblems_with_plain_tasks(tmp_path: Path) -> None:
    envs: list[dict[str, Any]] = [
        {
            "id": "tests.support.graded:Lucky",
            "name": "chain",
            "wrappers": [{"name": "subproblems", "num_problems": 2}],
        },
        {"id": "tests.support.graded:Lucky", "name": "plain"},
    ]
    first, second = train_steps(tmp_path, envs=envs, credit={"name": "scrl"}, filter={"name": "keep_all"})
    assert first["optim/updates"] == second["optim/updates"] == 2.0
    assert first["envs/chain/groups"] + first["envs/plain/groups"] == 2.0
    assert 0.0 <= first["reward/format"] <= 1.0
