"""Servers that fail and return, and what a client or a failed update leaves behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.serving import wire
from envgym.agents.policies.serving.client import ServedPolicy
from envgym.agents.policies.weights import served_weights
from envgym.agents.policies.weights.transport import FileTransport
from envgym.errors import InvalidInput, PolicyFailure
from tests.agents.policies.serving.running import changed, scripted, serving
from tests.agents.policies.serving.test_client import INFO, QUICK, answer, ask, client, made_up
from tests.agents.policies.small_models import llama, request


def test_the_only_server_is_asked_again_when_it_returns(tmp_path: Path) -> None:
    replies = iter([(503, {"error": "gone"}), (503, {"error": "gone"})])
    routes = made_up(__inference__v1__generate=lambda body: next(replies, answer((3, 3))))
    with scripted(routes) as server, client(tmp_path, server.url) as policy:
        assert ask(policy, [request((1, 2))])[0].token_ids == (7, 8, 9)


@pytest.mark.parametrize(
    "info, reason",
    [
        ({"other": 1}, "must be a policy server"),
        ({"weight_version": "x"}, "'x'"),
        ({"protocol": 5}, "must be 4, got 5"),
    ],
)
def test_a_server_that_returns_as_something_else_stays_down_and_says_why(
    tmp_path: Path, info: dict[str, Any], reason: str
) -> None:
    changes: dict[str, Any] = {}
    routes = made_up(
        __envgym__info=lambda body: {**INFO, **changes},
        __inference__v1__generate=lambda body: (503, {"error": "gone"}),
    )
    limits = replace(QUICK, retries=0, watch_s=1000)
    with scripted(routes) as server, client(tmp_path, server.url, limits=limits) as policy:
        with pytest.raises(PolicyFailure, match="503 gone"):
            ask(policy, [request((1, 2))])
        changes.update(info)
        link = policy._fleet.links[0]
        policy._loop.run(policy._fleet.look_at(link))
        assert (link.state, reason in link.reason) == ("down", True)


def test_temporary_weights_are_removed_with_the_policy_and_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scripted(made_up()) as server:
        policy = ServedPolicy([server.url], transport=FileTransport())
        assert len(list(tmp_path.iterdir())) == 1
        policy.close()
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="server must be reachable"):
        ServedPolicy(["http://127.0.0.1:9"], transport=FileTransport())
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_a_client_has_left_paused_goes_on(tmp_path: Path) -> None:
    with serving(llama()) as served:
        with client(tmp_path, served.http.url) as first:
            first._loop.run(first._fleet.links[0].ask("POST", "/pause?mode=keep"))
        with client(tmp_path, served.http.url) as second:
            assert served.weights.hold is None
            second._loop.run(second._fleet.links[0].ask("POST", "/pause?mode=keep"))
            second._loop.run(second._fleet.links[0].ask("POST", "/start_weight_update"))
        with pytest.raises(InvalidInput, match=r"server must go on sampling, got 503 .*start it again"):
            ServedPolicy([served.http.url], transport=FileTransport(tmp_path))


def test_a_number_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sampling_params must hold numbers"):
        wire.read_request({"token_ids": [1], "sampling_params": {"max_tokens": float("inf")}})


def test_a_server_that_an_update_fails_unexpectedly_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(pairs: object) -> None:
        raise KeyError("digests")

    monkeypatch.setattr(served_weights, "copy_weights", lose)
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        with pytest.raises(PolicyFailure, match="500 a weight update failed: KeyError: 'digests'"):
            policy.update_weights(changed(llama(), 1.1), 1)
        assert served.weights.broken == "a weight update failed: KeyError: 'digests'"
