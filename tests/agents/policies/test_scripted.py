"""A policy that says what it is told."""

import asyncio

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy, ScriptedReply
from envgym.agents.protocols import FinishReason, GenerateRequest, Sampling
from envgym.errors import PolicyFailure

REQUEST = GenerateRequest(token_ids=(1, 2), sampling=Sampling(max_new_tokens=3, stop_token_ids=(9,)), seed=0)


def say(policy: ScriptedPolicy) -> tuple[tuple[int, ...], FinishReason]:
    generation = asyncio.run(policy.generate(REQUEST))
    assert generation.behavior_logprobs == (0.0,) * len(generation.token_ids)
    return generation.token_ids, generation.finish_reason


@pytest.mark.parametrize(
    "said, expected",
    [
        ((5, 9), ((5, 9), FinishReason.STOP)),
        ((5, 6), ((5, 6), FinishReason.LENGTH)),
        ((5, 6, 7, 9), ((5, 6, 7), FinishReason.LENGTH)),
    ],
)
def test_a_reply_is_cut_at_the_limit_and_stops_at_a_stop_token(
    said: ScriptedReply, expected: tuple[tuple[int, ...], FinishReason]
) -> None:
    assert say(ScriptedPolicy([said])) == expected


def test_a_list_answers_in_order_and_ends_as_a_failure() -> None:
    policy = ScriptedPolicy([(1, 9), (2, 9)])
    assert [say(policy)[0], say(policy)[0]] == [(1, 9), (2, 9)]
    with pytest.raises(PolicyFailure, match="script must hold a reply for every request"):
        say(policy)
    assert policy.requests == [REQUEST] * 3


def test_a_function_sees_the_request() -> None:
    assert say(ScriptedPolicy(lambda request: (*request.token_ids, 9)))[0] == (1, 2, 9)


def test_versions_are_taken_and_carried() -> None:
    policy = ScriptedPolicy([(9,), (9,)])
    policy.update_weights([], version=4)
    assert (policy.version, asyncio.run(policy.generate(REQUEST)).policy_version) == (4, 4)
    assert asyncio.run(policy.compute_logprobs([(1, 2, 3), ()])) == [(0.0, 0.0, 0.0), ()]
