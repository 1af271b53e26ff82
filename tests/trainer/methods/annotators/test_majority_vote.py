"""The majority answer of a group: who votes, what counts as equal, and that the reference is never read."""

import asyncio
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Action, Ending, ToolCall
from envgym.config.plugins import Choice
from envgym.core.trajectory import Group
from envgym.core.tree import Annotation
from envgym.errors import EnvFailure, SettingsError
from envgym.trainer.methods.annotators import majority_vote as module
from envgym.trainer.methods.annotators.base import ANNOTATOR, episode_value
from envgym.trainer.methods.annotators.majority_vote import MajorityVote, find_majority, same_expression
from envgym.trainer.methods.shaping.annotated import Annotated
from tests.support.example_trees import TASK, invalid_branch, paid, policy, start, truncated_episode, turn
from tests.support.graded import LUCKY, train_steps
from tests.support.judges import judge_context

ANSWERS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=9)


def group_of(*actions: str | Action) -> Group:
    """Build a group of one-turn episodes with these actions, each of which the env paid 0."""
    trees = []
    for number, action in enumerate(actions):
        tree = start(f"t{number}")
        outcome = replace(paid(0.0), action=action if isinstance(action, Action) else Action(action))
        tree.add(tree.root, turn(policy(10, 11)), outcome=outcome, ending=Ending.TERMINATED)
        trees.append(tree.freeze())
    return Group(key="group", trees=tuple(trees))


def annotated(group: Group, **settings: Any) -> Group:
    context = judge_context(task=replace(TASK, payload={}))  # there is no reference that could be read
    return asyncio.run(MajorityVote.model_validate(settings)(group, context))


def values(group: Group, **settings: Any) -> list[float | None]:
    return [episode_value(episode, "majority_vote") for episode in annotated(group, **settings).trajectories]


def test_the_label_is_the_most_frequent_answer_and_the_first_of_equals() -> None:
    assert find_majority(["7", "42", None, "42"], equal=operator.eq) == ("42", 2, (False, True, False, True))
    assert find_majority(["7", "42", "42", "7"], equal=operator.eq) == ("7", 2, (True, False, False, True))
    assert find_majority([None, None], equal=operator.eq) is None
    assert find_majority([], equal=operator.eq) is None


def test_answers_that_are_equal_vote_together() -> None:
    # 1/2 and 0.5 have 2 + 1 votes, 3 has 2: as texts 3 and 1/2 would be even
    answers = ["3", "1/2", "0.5", "3", "1/2"]
    assert find_majority(answers, equal=same_expression) == ("1/2", 3, (False, True, True, False, True))
    assert find_majority(answers, equal=operator.eq) == ("3", 2, (True, False, False, True, False))


def test_words_are_equal_as_mathematics_only_where_their_texts_are() -> None:
    assert same_expression("the $1$ of $2$", "the $1$ of $2$")
    assert not same_expression("the $1$ of $2$", "3")


@given(ANSWERS)
def test_the_label_has_the_most_votes_and_the_votes_are_those_that_agree(answers: Sequence[str | None]) -> None:
    vote = find_majority(answers, equal=operator.eq)
    counts = Counter(answer for answer in answers if answer is not None)
    if vote is None:
        assert not counts
        return
    assert vote.num_votes == max(counts.values()) == sum(vote.agrees)
    assert [answer == vote.label for answer in answers] == list(vote.agrees)


@given(ANSWERS, st.randoms(use_true_random=False))
def test_the_order_of_episodes_decides_nothing_but_between_equals(answers: list[str | None], random: Any) -> None:
    counts = Counter(answer for answer in answers if answer is not None).most_common(2)
    shuffled = answers.copy()
    random.shuffle(shuffled)
    votes = [find_majority(of, equal=operator.eq) for of in (answers, shuffled)]
    assert [vote and vote.num_votes for vote in votes] == [counts[0][1] if counts else None] * 2
    if len({count for _, count in counts}) == len(counts) > 0:
        assert [vote and vote.label for vote in votes] == [counts[0][0]] * 2


@given(ANSWERS, st.integers(0, 4))
def test_another_vote_for_the_label_changes_no_label(answers: list[str | None], more: int) -> None:
    vote = find_majority(answers, equal=operator.eq)
    if vote is not None:
        again = find_majority([*answers, *[vote.label] * more], equal=operator.eq)
        assert again is not None
        assert (again.label, again.num_votes) == (vote.label, vote.num_votes + more)


def test_episodes_that_agree_have_one_and_the_others_zero() -> None:
    group = group_of(r"so \boxed{42}", "<answer>41</answer>", "#### 42", r"\boxed{1} or \boxed{42}", "")
    assert values(group) == [1.0, 0.0, 1.0, 0.0, 0.0]  # two different answers are none
    assert [item.verdict for tree in annotated(group).trees for item in tree.annotations] == ["2 of 5 for 42"] * 5


def test_calls_vote_by_name_and_arguments() -> None:
    calls = [ToolCall(name="buy", arguments={"item": item}) for item in ("pen", "ink", "pen")]
    assert values(group_of(*[Action("go", tool_calls=[call]) for call in calls])) == [1.0, 0.0, 1.0]


def test_texts_are_equal_up_to_case_and_spaces_and_expressions_as_mathematics() -> None:
    group = group_of(r"\boxed{x + 1}", r"\boxed{X  + 1 }", r"\boxed{1+x}", r"\boxed{y}")
    assert values(group) == [1.0, 1.0, 0.0, 0.0]
    assert values(group, equality="math") == [1.0, 1.0, 1.0, 0.0]


def test_invalid_episodes_do_not_vote_and_have_no_value() -> None:
    found = annotated(Group(key="g", trees=(invalid_branch(),)))
    assert [episode_value(episode, "majority_vote") for episode in found.trajectories] == [1.0, 1.0, None]


def test_an_episode_that_was_cut_inside_a_turn_does_not_vote() -> None:
    group = Group(key="g", trees=(truncated_episode(), *group_of("7").trees))
    assert group.valid[0].turns[-1].outcome is None
    assert values(group) == [0.0, 1.0]
    assert values(Group(key="g", trees=(truncated_episode(),))) == [0.0]


def test_below_the_least_share_there_is_no_label() -> None:
    group = group_of("7", "7", "7", "8", "9")
    assert values(group, min_share=0.6) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert values(group, min_share=0.61) == [0.0] * 5
    assert values(group_of(*"1112345678"), min_share=0.3) == [1.0] * 3 + [0.0] * 7


def test_a_comparison_that_fails_is_an_error_and_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(first: str, second: str) -> bool:
        raise EnvFailure("the process of math-verify was lost twice")

    read, _ = module._EQUALITIES["math"]
    monkeypatch.setitem(module._EQUALITIES, "math", (read, broken))
    with pytest.raises(EnvFailure, match="lost twice"):  # which the run writes on every episode
        annotated(group_of("1", "2"), equality="math")


def test_agreement_stands_in_place_of_the_reward_of_the_env() -> None:
    paid_by_vote = Annotated(annotation="majority_vote", instead=True)(annotated(group_of("7", "8", "7")))
    assert [episode.reward.value for episode in paid_by_vote.valid] == [1.0, 0.0, 1.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "settings, error", [({"equality": "near"}, "'text' or 'math'"), ({"min_share": 1.5}, "less than or equal to 1")]
)
def test_unusable_settings_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        ANNOTATOR.build(Choice.model_validate({"name": "majority_vote", **settings}))


def test_the_policy_trains_on_its_own_majority(tmp_path: Path) -> None:
    rows = train_steps(
        tmp_path,
        env=LUCKY,
        annotate=["majority_vote"],
        shaping={"name": "annotated", "annotation": "majority_vote", "instead": True},
        filter={"name": "keep_all"},
        optim={"lr": 0.001},
    )
    assert all(0 < row["annotate/majority_vote_mean"] <= 1 for row in rows)
    assert [row["annotate/majority_vote_failed"] for row in rows] == [0.0] * len(rows)
    assert any(row["optim/grad_norm"] > 0 for row in rows)


def test_annotations_name_the_label_as_a_person_reads_it() -> None:
    (item,) = [item for tree in annotated(group_of("\x1b[2J")).trees for item in tree.annotations]
    assert item == Annotation(
        name="majority_vote", level="episode", node=item.node, value=1.0, verdict="1 of 1 for \\u001b[2j"
    )
