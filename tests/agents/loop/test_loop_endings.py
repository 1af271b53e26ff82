"""How an episode ends: each ending, the reward that it leaves and the tokens that it keeps."""

from collections.abc import Sequence

import pytest

from envgym import Action, Ending, Invalid, Message, Observation, Scored
from envgym.agents.loop.agent import OnLength
from envgym.agents.protocols import FinishReason, Generation, Rendering
from envgym.core.segments import Origin, Segment
from envgym.tools import ToolSpec
from tests.agents.episodes import drawn, episode, generation
from tests.support.parrots import CharRenderer, Parrot, char_agent, encode, said


def test_turn_limit_ends_as_truncated_with_its_reward() -> None:
    trajectory, _ = episode([said("a"), said("b")], env=Parrot(max_turns=2))
    assert trajectory.ending is Ending.TRUNCATED_TURNS
    assert trajectory.reward == Scored(value=0.5)


def test_a_turn_that_reaches_its_token_limit_ends_the_episode_and_keeps_its_tokens() -> None:
    trajectory, _ = episode([said("a"), said("much too long")], char_agent(max_turn_tokens=4))
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert (leaf.ending, leaf.outcome, leaf.edge.ends_turn) == (Ending.TRUNCATED_TOKENS, None, False)
    assert [s.token_ids for s in leaf.edge.segments] == [encode("much")]
    assert leaf.edge.cost.tokens_generated == 4
    assert trajectory.reward == Scored(value=0.25)  # the first turn's


def test_an_unfinished_turn_can_be_closed_by_the_template_and_answered() -> None:
    agent = char_agent(max_turn_tokens=4, on_length=OnLength.CLOSE)
    trajectory, _ = episode([said("much too long"), said("bye")], agent)
    (row,) = trajectory.rows
    text, marks = drawn(row)
    assert text + "\n" + marks == (
        "<user>Q<end><assistant>much<end><user>much!<end><assistant>bye<end>\n"
        ".......................TTTT................................TTTTTTTT"
    )
    assert trajectory.ending is Ending.TERMINATED


def test_a_prompt_that_does_not_fit_ends_before_the_first_turn() -> None:
    # "<user>" + 8 characters + "<end>" + "<assistant>" = 11 tokens, and a turn of 4: 15 > 14
    trajectory, policy = episode([], char_agent(max_turn_tokens=4, max_context_tokens=14), prompt="12345678")
    assert (trajectory.ending, len(trajectory.tree.nodes)) == (Ending.TRUNCATED_TOKENS, 1)
    assert policy.requests == []
    fits, _ = episode([said("bye")], char_agent(max_turn_tokens=4, max_context_tokens=15), prompt="12345678")
    assert fits.ending is Ending.TERMINATED


def test_a_context_without_room_for_another_turn_ends_after_the_answered_one() -> None:
    # prompt 4, "a<end>" 2, "<user>a!<end><assistant>" 5: the next context has 11, and a turn of 4 makes 15
    trajectory, _ = episode([said("a")], char_agent(max_turn_tokens=4, max_context_tokens=14))
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is Ending.TRUNCATED_TOKENS
    assert leaf.outcome is not None
    assert leaf.outcome.observation == "a!"
    assert [s.origin for s in leaf.edge.segments] == [Origin.POLICY]


@pytest.mark.parametrize(
    "word, ending, reason",
    [("crash", Ending.ERROR_ENV, "the parrot fell"), ("unplug", Ending.ERROR_TOOL_INFRA, "the perch lost power")],
)
def test_a_broken_env_is_an_invalid_reward_and_keeps_the_turn(word: str, ending: Ending, reason: str) -> None:
    trajectory, _ = episode([said("a"), said(word)])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is ending
    assert reason in (leaf.error or "")
    assert isinstance(trajectory.reward, Invalid)
    assert [s.token_ids for s in leaf.edge.segments] == [said(word)]


def test_a_policy_that_fails_ends_the_episode_with_an_empty_leaf() -> None:
    trajectory, _ = episode([said("a"), RuntimeError("no engine")])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert (leaf.ending, leaf.edge.segments) == (Ending.ERROR_POLICY, ())
    assert leaf.error == "generation failed: RuntimeError: no engine"
    assert len(trajectory.turns) == 1


def test_an_aborted_generation_keeps_what_was_sampled() -> None:
    trajectory, _ = episode([generation("hal", FinishReason.ABORT)])
    leaf = trajectory.tree.nodes[trajectory.leaf]
    assert leaf.ending is Ending.ERROR_ABORTED
    assert [s.token_ids for s in leaf.edge.segments] == [encode("hal")]
    assert (leaf.edge.cost.tokens_generated, leaf.edge.cost.tokens_prefilled) == (3, 9)
    nothing, _ = episode([generation("", FinishReason.ABORT)])
    assert nothing.tree.nodes[nothing.leaf].edge.segments == ()


def test_a_token_that_nobody_knows_is_a_failure_of_the_policy_and_is_paid_for() -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken("strings")))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert trajectory.tree.cost.tokens_generated == 2


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")])
def test_a_log_prob_that_is_not_finite_is_a_failure_of_the_policy(logprob: float) -> None:
    trajectory, _ = episode([generation("a", FinishReason.STOP, logprob)])
    assert trajectory.ending is Ending.ERROR_POLICY
    assert "not finite" in (trajectory.tree.nodes[trajectory.leaf].error or "")


def test_a_generation_without_tokens_is_a_failure_of_the_policy() -> None:
    trajectory, _ = episode([generation("", FinishReason.STOP)])
    assert trajectory.ending is Ending.ERROR_POLICY


class Broken(CharRenderer):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def start(self, messages: Sequence[Message], tools: object) -> Rendering:
        if self.where == "start":
            raise ValueError("no template")
        return super().start(messages, ())

    def extend(
        self, history: Sequence[Message], generation: Generation, observation: Observation, tools: object
    ) -> Rendering:
        if self.where == "extend":
            raise ValueError("no template")
        rendering = super().extend(history, generation, observation, ())
        if self.where == "forge":
            forged = Segment(origin=Origin.POLICY, token_ids=(1,), behavior_logprobs=(0.0,), policy_version=0)
            return Rendering(segments=(*rendering.segments, forged))
        return rendering

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        if self.where == "strings":
            raise IndexError("no such token")
        return super().token_strings(token_ids)

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        if self.where == "parse":
            raise ValueError("no parser")
        return super().parse(token_ids, tools)


@pytest.mark.parametrize("where, num_sampled, num_turns", [("start", 0, 0), ("parse", 2, 1), ("extend", 2, 1)])
def test_a_failing_renderer_ends_one_episode_and_loses_no_token(where: str, num_sampled: int, num_turns: int) -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken(where)))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert (trajectory.num_sampled, len(trajectory.turns)) == (num_sampled, num_turns)


def test_a_renderer_cannot_pass_off_its_tokens_as_sampled() -> None:
    trajectory, _ = episode([said("a")], char_agent(Broken("forge")))
    assert trajectory.ending is Ending.ERROR_POLICY
    assert trajectory.num_sampled == 2
