"""Replies of services as they send them: content, thinking and calls, and refusals of too long a conversation."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.chat_replies import read_response
from envgym.agents.protocols import FinishReason, Sampling
from envgym.agents.rollout.messages import MessageReply, MessageRequest
from envgym.chats.replies import _FULL, BadResponse, is_context_full, read_message
from envgym.core.messages import Message, Role
from envgym.errors import PolicyFailure
from tests.agents.policies.fake_server import Pauses, Server
from tests.agents.policies.test_openai import ask


def read_rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


MESSAGES, REFUSALS = read_rows("chat_messages.jsonl"), read_rows("refusals.jsonl")


@pytest.mark.parametrize("row", MESSAGES, ids=[row["source"] for row in MESSAGES])
def test_content_thinking_and_calls_of_a_message_are_told_apart(row: dict[str, Any]) -> None:
    action = read_message(row["message"], has_tools=row["has_tools"])
    assert (action.content, action.thinking) == (row["content"], row["thinking"])
    assert [[call.name, dict(call.arguments)] for call in action.tool_calls] == row["calls"]
    assert all(call.id for call in action.tool_calls), "the protocol answers a call by its id"
    assert bool(action.malformed) == (row["reason"] is not None)
    assert row["reason"] is None or row["reason"] in action.malformed[0]


def test_at_least_thirty_messages_are_checked() -> None:
    assert len(MESSAGES) >= 30


@pytest.mark.parametrize(
    "content, reason",
    [
        ({"text": "hi"}, "the content is no text"),
        ([{"type": "image_url", "image_url": {}}], "a part of type image_url"),
    ],
)
def test_a_content_without_text_is_refused(content: object, reason: str) -> None:
    with pytest.raises(BadResponse, match=reason):
        read_message({"role": "assistant", "content": content}, has_tools=False)


@pytest.mark.parametrize(
    "finish, reason, is_full",
    [
        ("stop", FinishReason.STOP, False), ("tool_calls", FinishReason.STOP, False),
        ("eos_token", FinishReason.STOP, False), (None, FinishReason.STOP, False),
        ("length", FinishReason.LENGTH, False), ("model_length", FinishReason.LENGTH, False),
        ("max_tokens", FinishReason.LENGTH, False), ("MAX_TOKENS", FinishReason.LENGTH, False),
        ("model_context_window_exceeded", FinishReason.LENGTH, True),
    ],
)  # fmt: skip
def test_reasons_to_end_a_reply_have_one_meaning(finish: str | None, reason: FinishReason, is_full: bool) -> None:
    reply = read_response({"choices": [{"message": {"content": "hi"}, "finish_reason": finish}]})
    assert (reply.finish_reason, reply.context_is_full) == (reason, is_full)


@pytest.mark.parametrize("finish", ["error", "abort", "network_error"])
def test_a_reply_that_broke_off_is_no_reply(finish: str) -> None:
    with pytest.raises(BadResponse, match=f"the reply ended with {finish}"):
        read_response({"choices": [{"message": {"content": "hal"}, "finish_reason": finish}]})


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REFUSALS, ids=[row["source"] for row in REFUSALS])
def test_a_full_context_is_told_from_every_other_refusal(row: dict[str, Any]) -> None:
    assert is_context_full(row["status"], row["body"], row["max_tokens"]) is row["is_full"]


def test_at_least_forty_full_contexts_are_checked() -> None:
    assert sum(row["is_full"] for row in REFUSALS) >= 40
    assert len(REFUSALS) - sum(row["is_full"] for row in REFUSALS) >= 15


def test_a_hostile_refusal_costs_no_more_than_its_length() -> None:
    unescaped = re.sub(r"\\.", "x", _FULL.pattern)
    assert not re.findall(r"[*+]|,\}", unescaped), "every repetition has a bound"
    for text in ("request" + "exceed" * 650, "request exceed " * 260, "input" * 800):
        assert not is_context_full(400, text, 0)


@pytest.mark.parametrize("status", [200, 400, 413, 422, 500])
def test_a_full_context_ends_as_one_after_a_single_request(server: Server, status: int) -> None:
    row = next(row for row in REFUSALS if row["status"] == status and row["is_full"])
    server.script = [(status, row["body"], {})]
    pauses = Pauses()
    reply = ask(server, lambda policy: policy.reply(_request(256)), pauses)
    assert isinstance(reply, MessageReply)
    assert reply.context_is_full
    assert (reply.action, len(server.bodies), pauses.seen) == ("", 1, [])


def test_a_reply_limit_that_takes_the_whole_context_is_refused_at_once(server: Server) -> None:
    row = next(row for row in REFUSALS if row["max_tokens"] == 8192)
    server.script = [(400, row["body"], {})]
    with pytest.raises(PolicyFailure, match="refused the request: 400 'max_tokens'"):
        ask(server, lambda policy: policy.reply(_request(8192)))
    assert len(server.bodies) == 1


def _request(max_new_tokens: int) -> MessageRequest:
    message = Message(role=Role.USER, content="hello")
    return MessageRequest(messages=(message,), tools=(), sampling=Sampling(max_new_tokens=max_new_tokens), seed=0)
