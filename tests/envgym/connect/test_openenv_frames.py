"""Frames of OpenEnv's protocol: what is read, what is refused and with which code."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.connect.openenv_frames import (
    Act,
    CallTool,
    ErrorCode,
    ErrorReply,
    FrameError,
    Observed,
    Query,
    Reset,
    Rpc,
    RpcCode,
    RpcError,
    error_frame,
    observation_frame,
    read_frame,
    read_observed,
)
from envgym.core.messages import Action, ToolCall
from envgym.core.tasks import Split
from envgym.errors import EnvFailure


def frame(kind: str, data: object = None) -> str:
    return json.dumps({"type": kind} if data is None else {"type": kind, "data": data})


def action_of(text: str) -> Action:
    act = read_frame(text)
    assert isinstance(act, Act)
    assert isinstance(act.action, Action)
    return act.action


# What `GenericEnvClient` and the typed clients of openenv 0.10.0 send.
@pytest.mark.parametrize(
    "text, expected",
    [
        (frame("reset", {}), Reset()),
        (frame("reset"), Reset()),
        (frame("reset", {"seed": 7, "episode_id": "a"}), Reset(seed=7, episode_id="a")),
        (frame("reset", {"split": "test", "index": 12}), Reset(split=Split.TEST, index=12)),
        (frame("reset", {"seed": None, "episode_id": None}), Reset()),
        (frame("step", {"text": "hello"}), Act("hello")),
        (frame("step", {"text": "hello", "tool_calls": [], "metadata": {}}), Act("hello")),
        (frame("step", {"text": "hello", "tool_calls": None}), Act("hello")),
        (frame("step", {"type": "list_tools"}), Query.LIST_TOOLS),
        (
            frame("step", {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}),
            CallTool(name="add", arguments={"a": 1}),
        ),
        (frame("state"), Query.STATE),
        (frame("close"), Query.CLOSE),
        (
            frame("mcp", {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}),
            Rpc(method="tools/list", params={}, id=1),
        ),
    ],
)
def test_frames_of_clients_are_read(text: str, expected: object) -> None:
    assert read_frame(text) == expected


def test_plain_text_is_not_parsed_and_calls_are_taken_as_they_are() -> None:
    plain = read_frame(frame("step", {"text": "<tool_call>{}</tool_call>"}))
    assert isinstance(plain, Act)
    assert not isinstance(plain.action, Action)
    action = action_of(frame("step", {"text": "so", "tool_calls": [{"name": "f", "arguments": {"x": 1}, "id": "c1"}]}))
    assert (str(action), action.tool_calls) == ("so", (ToolCall(name="f", arguments={"x": 1}, id="c1"),))


DEEP = '{"type": "step", "data": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    "text, code, words",
    [
        ("", ErrorCode.INVALID_JSON, "be JSON"),
        ("{", ErrorCode.INVALID_JSON, "be JSON"),
        (DEEP, ErrorCode.INVALID_JSON, "be JSON"),
        ("[]", ErrorCode.VALIDATION_ERROR, "be an object"),
        ("7", ErrorCode.VALIDATION_ERROR, "be an object"),
        ("{}", ErrorCode.UNKNOWN_TYPE, "got None"),
        (frame("fly", {}), ErrorCode.UNKNOWN_TYPE, "got fly"),
        ('{"type": ["reset"]}', ErrorCode.UNKNOWN_TYPE, "['reset']"),
        (frame("reset", []), ErrorCode.VALIDATION_ERROR, "be an object"),
        (frame("reset", {"seed": -1}), ErrorCode.VALIDATION_ERROR, "seed must be a whole number from 0, got -1"),
        (frame("reset", {"seed": True}), ErrorCode.VALIDATION_ERROR, "got True"),
        (frame("reset", {"seed": "1"}), ErrorCode.VALIDATION_ERROR, "got 1"),
        (frame("reset", {"index": 2**63}), ErrorCode.VALIDATION_ERROR, "index must"),
        (frame("reset", {"split": "dev"}), ErrorCode.VALIDATION_ERROR, "split must be train or test, got dev"),
        (frame("reset", {"split": {}}), ErrorCode.VALIDATION_ERROR, "split must"),
        (frame("reset", {"episode_id": "x" * 256}), ErrorCode.VALIDATION_ERROR, "episode_id must"),
        (frame("reset", {"level": 3}), ErrorCode.VALIDATION_ERROR, "got level"),
        (frame("step"), ErrorCode.VALIDATION_ERROR, "text must be a text, got None"),
        (frame("step", {"text": 1}), ErrorCode.VALIDATION_ERROR, "text must be a text, got 1"),
        (frame("step", {"message": "hello"}), ErrorCode.VALIDATION_ERROR, "got message"),
        (frame("step", {"text": "", "tool_calls": {}}), ErrorCode.VALIDATION_ERROR, "tool_calls must be a list"),
        (frame("step", {"text": "", "tool_calls": [1]}), ErrorCode.VALIDATION_ERROR, "tool call must be an object"),
        (frame("step", {"text": "", "tool_calls": [{}]}), ErrorCode.VALIDATION_ERROR, "name must be a text"),
        (
            frame("step", {"text": "", "tool_calls": [{"name": "f", "arguments": "{}"}]}),
            ErrorCode.VALIDATION_ERROR,
            "arguments must be an object",
        ),
        (
            frame("step", {"text": "", "tool_calls": [{"name": "f", "id": 1}]}),
            ErrorCode.VALIDATION_ERROR,
            "id of a tool call",
        ),
        (frame("step", {"type": "call_tool"}), ErrorCode.VALIDATION_ERROR, "tool_name must be a text"),
        (frame("step", {"type": "list_tools", "x": 1}), ErrorCode.VALIDATION_ERROR, "got x"),
        (frame("state", {}), ErrorCode.VALIDATION_ERROR, "got data"),
        ('{"type": "close", "now": 1}', ErrorCode.VALIDATION_ERROR, "got now"),
    ],
)
def test_bad_frames_have_a_code_and_a_sentence(text: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(FrameError) as refused:
        read_frame(text)
    assert refused.value.code is code
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "data, code, request_id",
    [
        ({}, RpcCode.INVALID_REQUEST, None),
        ({"jsonrpc": "1.0", "method": "tools/list", "id": 4}, RpcCode.INVALID_REQUEST, 4),
        ({"jsonrpc": "2.0", "method": 5, "id": True}, RpcCode.INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "method": "tools/list", "params": [], "id": "a"}, RpcCode.INVALID_PARAMS, "a"),
    ],
)
def test_bad_requests_inside_a_frame_have_a_code_of_json_rpc(data: Any, code: RpcCode, request_id: object) -> None:
    with pytest.raises(RpcError) as refused:
        read_frame(frame("mcp", data))
    assert (refused.value.code, refused.value.request_id) == (code, request_id)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_KINDS = st.sampled_from(["reset", "step", "state", "mcp", "close"])
_FIELDS = st.dictionaries(
    st.sampled_from(["seed", "split", "index", "text", "tool_calls", "type", "tool_name", "jsonrpc", "method", "id"]),
    _JSON | st.sampled_from(["call_tool", "list_tools", "2.0", "train"]),
)


@given(_KINDS, _FIELDS | _JSON)
def test_any_json_is_read_or_refused_in_the_form_of_the_protocol(kind: str, data: Any) -> None:
    with suppress(FrameError, RpcError):
        read_frame(frame(kind, data))


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.none() | st.floats(allow_nan=False), st.booleans())
def test_written_observations_are_read_as_equal_ones(observation: Any, reward: float | None, done: bool) -> None:
    observed = Observed(observation=observation, reward=reward, done=done)
    assert read_observed(observation_frame(observed), where="here") == observed


def test_error_frames_raise_with_their_code() -> None:
    with pytest.raises(ErrorReply, match=r"http://a answered: no room \(CAPACITY_REACHED\)") as reply:
        read_observed(error_frame("no room", ErrorCode.CAPACITY_REACHED), where="http://a")
    assert reply.value.code == ErrorCode.CAPACITY_REACHED


@pytest.mark.parametrize(
    "text, words",
    [
        ("<html>", "be JSON"),
        ("[]", "be an object"),
        ('{"type": "hello"}', "data of a frame must be an object"),
        ('{"type": "hello", "data": {}}', "type must be observation, got hello"),
        ('{"type": "observation", "data": {"observation": "text"}}', "observation must be an object"),
        ('{"type": "observation", "data": {"observation": {}, "reward": "1"}}', "reward must be a number or null"),
        ('{"type": "observation", "data": {"observation": {}, "done": 1}}', "done must be true or false"),
    ],
)
def test_answers_of_another_form_are_failures_of_the_env(text: str, words: str) -> None:
    with pytest.raises(EnvFailure, match="OpenEnv") as failure:
        read_observed(text, where="http://a")
    assert words in str(failure.value)
