"""Process rewards: which prefix a scorer is shown for each turn, and the law of gains."""

import asyncio
from collections.abc import Sequence

from envgym.core.trajectory import Group
from envgym.trainer.methods.annotators.base import Model, turn_values
from envgym.trainer.methods.annotators.process_reward import ProcessReward, turn_prefixes
from tests.support.example_trees import branch_after_a_tool_call, context_rewrite, fork_inside_a_turn, truncated_episode
from tests.support.judges import judge_context


class LengthScorer(Model):
    """The value of a prefix is a function of its tokens; what is over is worth more."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    async def compute_values(self, token_ids: Sequence[tuple[int, ...]], is_over: Sequence[bool]) -> list[float]:
        self.asked += token_ids
        return [len(ids) + 100.0 * over for ids, over in zip(token_ids, is_over, strict=True)]


def scored(group: Group, **fields: str) -> tuple[Group, LengthScorer]:
    scorer = LengthScorer()
    context = judge_context(models={"scorer": scorer})
    return asyncio.run(ProcessReward.model_validate(fields)(group, context)), scorer


def test_a_turn_is_scored_with_the_reply_and_the_last_one_without() -> None:
    # prompt 1 2 3 4 | sampled 10 11 | glue 5, reply 30 31, glue 4 | sampled 12 13
    first, second = [turn_prefixes(item) for item in Group(key="g", trees=(branch_after_a_tool_call(),)).trajectories]
    assert [(item.node, len(item.token_ids), item.is_over) for item in first] == [
        (0, 4, False),
        (1, 10, False),
        (2, 12, True),
    ]
    assert second[2].token_ids == (1, 2, 3, 4, 10, 11, 5, 30, 31, 4, 14)


def test_after_a_rewrite_the_prefix_is_of_the_new_context() -> None:
    (episode,) = Group(key="g", trees=(context_rewrite(),)).trajectories
    assert [item.token_ids for item in turn_prefixes(episode)] == [
        (1, 2, 3, 4), (1, 2, 3, 4, 10, 11), (1, 10, 11, 30, 4, 12, 13)
    ]  # fmt: skip


def test_what_was_sampled_last_ends_an_episode_that_was_cut_inside_a_turn() -> None:
    (episode,) = Group(key="g", trees=(truncated_episode(),)).trajectories
    assert [(item.token_ids[-1], item.is_over) for item in turn_prefixes(episode)] == [
        (4, False),
        (4, False),
        (13, True),
    ]


def test_a_shared_turn_is_scored_once() -> None:
    group = Group(key="g", trees=(branch_after_a_tool_call(), fork_inside_a_turn()))
    found, scorer = scored(group)
    assert len(scorer.asked) == len(set(map(tuple, scorer.asked))) + 1  # the two trees have one prompt
    assert [turn_values(episode, "process") for episode in found.trajectories] == [
        (10.0, 112.0), (10.0, 111.0), (108.0,), (108.0,)
    ]  # fmt: skip


def test_gains_add_up_to_the_last_value_less_the_first() -> None:
    group = Group(key="g", trees=(branch_after_a_tool_call(),))
    values, gains = [
        turn_values(scored(group, reward=kind)[0].trajectories[0], "process") or () for kind in ("value", "gain")
    ]
    assert values == (10.0, 112.0)
    assert gains == (10.0 - 4.0, 112.0 - 10.0)  # the prompt is 4 tokens
    assert sum(gains) == values[-1] - 4.0
