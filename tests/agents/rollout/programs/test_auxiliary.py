"""Calls of models that are not trained: passed on, counted, and in no row."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from pydantic import ValidationError

from envgym import Scored
from envgym.agents.loop.agent import AgentSettings
from envgym.agents.rollout.programs.auxiliary import read_usage
from envgym.agents.search import Chain
from envgym.core.json_types import JsonObject
from envgym.core.turns import Cost
from envgym.errors import InvalidInput
from envgym.runtime.event_loop import LoopThread
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from tests.agents.rollout.programs import sample_programs
from tests.agents.rollout.programs.playing import play
from tests.support.parrots import Parrot

USAGE: JsonObject = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
CHAT: JsonObject = {"choices": [], "usage": USAGE}
EVENTS = (
    b'event: response.created\ndata: {"response": {"usage": null}}\n\n'
    b'event: response.completed\ndata: {"response": {"usage": {"input_tokens": 5, "output_tokens": 3}}}\n\n'
)


@contextmanager
def judge(requests: list[HttpRequest], *, status: HTTPStatus = HTTPStatus.OK) -> Iterator[str]:
    """Serve another model in each wire format, and keep what was asked; yield its address with version."""

    def answer(request: HttpRequest) -> HttpReply:
        requests.append(request)
        if status is not HTTPStatus.OK:
            return HttpReply.of_json({"error": "busy"}, status)._replace(headers={"retry-after": "7"})
        if request.path == "/v1/responses":
            return HttpReply(HTTPStatus.OK, EVENTS, "text/event-stream")
        return HttpReply.of_json(CHAT)

    thread, server = LoopThread("judge"), HttpServer(answer)
    thread.run(server.listen("127.0.0.1", 0))
    try:
        yield f"{server.url}/v1"
    finally:
        thread.close(server.close())


def test_other_models_are_asked_in_every_format_and_their_cost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    requests: list[HttpRequest] = []
    with judge(requests) as url:
        endpoint = {"base_url": url, "model": "judge-7b", "api_key_env": "JUDGE_KEY"}
        trajectory = play("ask_a_judge", auxiliary={"judge": endpoint})
    alone = play("play")
    assert [request.path for request in requests] == ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
    assert {json.loads(request.body)["model"] for request in requests} == {"judge-7b"}
    assert json.loads(requests[0].body)["logit_bias"] == {"1": 1}
    assert [request.headers.get("authorization") for request in requests] == ["Bearer secret", "Bearer secret", None]
    assert [request.headers.get("x-api-key") for request in requests] == [None, None, "secret"]
    assert {request.headers["anthropic-version"] for request in requests} == {"1"}
    chat, responses, _, model = sample_programs.LAST_TEXTS
    assert (json.loads(chat.removeprefix("200 ")), responses) == (CHAT, f"200 {EVENTS.decode()}")
    assert '"id":"judge"' in model
    # one turn trains, as without a judge
    assert (trajectory.rows, trajectory.reward) == (alone.rows, Scored(value=0.25))
    own, cost = alone.tree.cost, trajectory.tree.cost
    assert cost.tokens_generated == own.tokens_generated + 4 + 3 + 4
    assert cost.tokens_prefilled == own.tokens_prefilled + 7 + 5 + 7


def test_errors_of_the_endpoint_are_passed_back_and_an_endpoint_that_is_gone_is_a_bad_gateway() -> None:
    with judge([], status=HTTPStatus.TOO_MANY_REQUESTS) as url:
        play("ask_a_judge", auxiliary={"judge": {"base_url": url}})
        assert sample_programs.LAST_TEXTS[:3] == ['429 {"error":"busy"}'] * 3
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        trajectory = play("ask_a_judge", auxiliary={"judge": {"base_url": url}})
    assert all(text.startswith("502 ") for text in sample_programs.LAST_TEXTS[:3])
    assert "auxiliary model must answer, got ConnectError" in sample_programs.LAST_TEXTS[0]
    assert f"(judge at {url}/chat/completions)" in sample_programs.LAST_TEXTS[0]
    assert trajectory.reward == Scored(value=0.25)


@pytest.mark.parametrize(
    "body,is_stream,generated,prefilled",
    [
        (b"busy", False, 0, 0),
        (b"[1]", False, 0, 0),
        (b'{"usage": null}', False, 0, 0),
        (b'{"usage": {"prompt_tokens": "9", "completion_tokens": 2}}', False, 2, 0),
        (
            b'data: {"usage": null}\n\ndata: {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]',
            True,
            2,
            3,
        ),
        (
            b'data: {"message": {"usage": {"input_tokens": 8, "output_tokens": 1}}}\n\n'
            b'data: {"usage": {"output_tokens": 6}}\n\n',
            True,
            6,
            8,
        ),
        (b'data: {"usage": {', True, 0, 0),
    ],
)
def test_the_tokens_of_an_answer_are_read_where_it_states_them(
    body: bytes, is_stream: bool, generated: int, prefilled: int
) -> None:
    assert read_usage(body, is_stream=is_stream) == Cost(tokens_generated=generated, tokens_prefilled=prefilled)


def test_a_key_that_is_missing_and_the_name_of_the_policy_are_refused_before_anything_is_sampled() -> None:
    endpoint = {"base_url": "http://localhost:1/v1", "api_key_env": "NO_SUCH_KEY_HERE"}
    program = {"run": f"{sample_programs.__name__}:ask_a_judge", "auxiliary": {"judge": endpoint}}
    agent = AgentSettings.model_validate({"program": program})
    with pytest.raises(InvalidInput, match="environment variable must hold a key, got NO_SUCH_KEY_HERE"):
        Chain().check(Parrot(), agent, group_size=8)
    with pytest.raises(ValidationError, match="name of an auxiliary model must not be empty or policy, got policy"):
        AgentSettings.model_validate({"program": program | {"auxiliary": {"policy": endpoint}}})
