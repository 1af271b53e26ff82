"""R1-Searcher's rewards: stages, the form of an episode, and the bonus for few searches, by hand and in a run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.messages import Action, Observation, ToolCall
from envgym.core.trajectory import Group
from envgym.core.tree import Edge, Tree
from envgym.core.turns import Ending, Invalid, Scored, TurnOutcome
from envgym.runs.directory import RunDirectory
from envgym.trainer.methods.credit.outcome import Grpo, episode_rewards
from envgym.trainer.methods.shaping.r1_searcher import R1Searcher
from envgym.trainer.train import train
from tests.support.credit_trees import chains, group_of, per_node
from tests.support.example_trees import policy, start
from tests.trainer.test_recipes import settings

SECOND: dict[str, Any] = {"answer": 1.0, "retrieval": 0.0, "format": 0.0, "penalty": 2.0}
RIGHT, WRONG = "<answer>Rome</answer>", "Rome"
LONG = f"<answer>{'word ' * 11}</answer>"


def episode(name: str, searches: int, answer: str, reward: float, *, errors: int = 0, tool: str = "search") -> Tree:
    """Return an episode that searches in a turn each, then answers; the last search has errors."""
    builder = start(name)
    node = builder.root
    for number in range(searches):
        action = Action("call", content="", tool_calls=[ToolCall(name=tool, arguments={"query": "x"})])
        is_last = number == searches - 1
        outcome = TurnOutcome(action=action, observation=Observation("pages"), tool_errors=errors * is_last)
        node = builder.add(node, Edge(segments=(policy(10 + number),), ends_turn=True), outcome=outcome)
    last = TurnOutcome(
        action=Action(answer), observation=Observation(), reward=Scored(value=reward, components={"answer": reward})
    )
    builder.add(node, Edge(segments=(policy(50),), ends_turn=True), outcome=last, ending=Ending.TERMINATED)
    return builder.freeze()


def shaped(*trees: Tree, **chosen: Any) -> list[float]:
    return list(episode_rewards(R1Searcher(**chosen)(group_of(*trees))))


def test_first_stage_pays_for_searching_and_for_form_whatever_the_answer() -> None:
    trees = [
        episode("both", 1, RIGHT, 0.0),  # 0.5 + 0.5
        episode("form", 0, RIGHT, 1.0),  # 0.5: the right answer is not paid for
        episode("search", 2, WRONG, 1.0),  # 0.5: no tags
        episode("refused", 1, RIGHT, 1.0, errors=1),  # 0.5: it searched, but not as it must
        episode("other", 1, RIGHT, 1.0, tool="open"),  # 0.5: no search tool
        episode("long", 0, LONG, 1.0),  # 0: eleven words
        episode("twice", 0, RIGHT + RIGHT, 1.0),  # 0: the tags twice
    ]
    assert shaped(*trees) == [1.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0]


def test_second_stage_pays_for_answers_and_takes_2_from_bad_form() -> None:
    trees = [
        episode("good", 0, RIGHT, 0.4),
        episode("bad", 1, WRONG, 0.4),
        episode("refused", 1, RIGHT, 1.0, errors=1),
    ]
    assert shaped(*trees, **SECOND) == pytest.approx([0.4, -1.6, -1.0])


def test_bonus_goes_to_right_episodes_with_the_fewest_searches() -> None:
    # right episodes search 1, 1 and 4 times: mean 2, variance (1 + 1 + 4) / 3 = 2, s = 1.414; wrong ones do not count
    trees = [
        episode("a", 1, RIGHT, 1.0),
        episode("b", 1, RIGHT, 1.0),
        episode("c", 4, RIGHT, 1.0),
        episode("d", 0, RIGHT, 0.0),
    ]
    assert shaped(*trees, **SECOND, bonus=2.0) == pytest.approx([2.41421, 2.41421, 1.0, 0.0], abs=1e-5)
    assert shaped(*trees, **SECOND, bonus=0.5) == pytest.approx([1.5, 1.5, 1.0, 0.0])
    assert shaped(trees[3], **SECOND, bonus=2.0) == [0.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_first_stage_in_unit_interval_and_bonus_leaves_equal_searches_be(
    specs: list[tuple[int, bool, bool]],
) -> None:
    trees = [episode(f"t{n}", num, RIGHT if good else WRONG, right) for n, (num, good, right) in enumerate(specs)]
    assert all(0.0 <= reward <= 1.0 for reward in shaped(*trees))
    same = [episode(f"t{n}", 2, RIGHT if good else WRONG, right) for n, (_, good, right) in enumerate(specs)]
    assert shaped(*same, **SECOND, bonus=2.0) == shaped(*same, **SECOND)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3), min_size=2, max_size=4))
def test_answers_alone_give_the_advantages_of_the_env(rewards: list[list[float]]) -> None:
    group: Group = chains(*rewards)
    alone = R1Searcher(answer=1.0, retrieval=0.0, format=0.0)(group)
    for ours, theirs in zip(per_node(Grpo()(alone)), per_node(Grpo()(group)), strict=True):
        assert ours == pytest.approx(theirs)


def test_invalid_episodes_stay_invalid() -> None:
    builder = start("broken")
    outcome = TurnOutcome(
        action=Action("x"), observation=Observation(), reward=Invalid(cause=Ending.ERROR_PARTY, reason="gone")
    )
    builder.add(builder.root, Edge(segments=(policy(9),), ends_turn=True), outcome=outcome, ending=Ending.TERMINATED)
    group = R1Searcher()(group_of(builder.freeze(), episode("good", 1, RIGHT, 1.0)))
    assert [item.is_valid for item in group.trajectories] == [False, True]


def test_second_stage_follows_the_first_in_one_run(tmp_path: Path) -> None:
    stage = {"after": {"step": 1}, "settings": {f"shaping.{name}": value for name, value in SECOND.items()}}
    chosen = settings("r1_searcher", tmp_path / "run", controllers=[{"name": "stages", "stages": [stage]}])
    train(chosen)
    rows = [row for row in RunDirectory.open(tmp_path / "run").metrics() if "train/rows" in row]
    assert [row["control/stages/stage"] for row in rows] == [1.0, 1.0, 1.0]
    assert [row["control/shaping.penalty"] for row in rows] == [2.0, 2.0, 2.0]  # what the next step pays by
    assert [row["control/settings"] for row in rows] == [4.0, 0.0, 0.0]
    assert [row["optim/updates"] for row in rows] == [1.0, 1.0, 1.0]
