"""The policy of policy servers against the twin and against scripted servers."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.serving.identity import model_digest
from envgym.agents.policies.serving.link import ExpectedModel
from envgym.agents.policies.serving.wire import PROTOCOL
from envgym.agents.policies.weights.transport import FileTransport
from envgym.agents.policies.weights.weight_store import digest
from envgym.agents.protocols import GenerateRequest, Generation, VersionSpan
from envgym.errors import InvalidInput, PolicyFailure
from envgym.runtime.http.server import HttpReply, HttpRequest, HttpServer
from tests.agents.policies.serving.running import Routes, changed, scripted, serving
from tests.agents.policies.small_models import contexts, generate, llama, request
from tests.support.http_server import http_thread

QUICK = ClientLimits(timeout_s=20, update_timeout_s=20, watch_s=0.02)
INFO: dict[str, Any] = {
    "engine": "transformers",
    "model": "made-up",
    "protocol": PROTOCOL,
    "weight_version": "3",
    "max_context": 99,
}


@contextmanager
def client(folder: Path, *urls: str, limits: ClientLimits = QUICK, **options: Any) -> Iterator[ServedPolicy]:
    policy = ServedPolicy(urls, transport=FileTransport(folder), limits=limits, **options)
    try:
        yield policy
    finally:
        policy.close()


def ask(policy: ServedPolicy, items: Sequence[GenerateRequest]) -> list[Generation]:
    async def together() -> list[Generation]:
        return list(await asyncio.gather(*[policy.generate(item) for item in items]))

    return asyncio.run(together())


def answer(*spans: tuple[int, int], tokens: int = 3, logprobs: Sequence[float] | None = None) -> dict[str, Any]:
    """Return an answer of so many tokens, whose spans are (version, number of tokens)."""
    starts = [sum(count for _, count in spans[:place]) for place in range(len(spans))]
    versions = [
        {"version": str(version), "start": start, "end": start + count}
        for (version, count), start in zip(spans, starts, strict=True)
    ]
    values = [-0.5 - place for place in range(tokens)] if logprobs is None else logprobs
    entries = [{"token_id": 7 + place, "logprob": value} for place, value in enumerate(values)]
    choice = {"token_ids": list(range(7, 7 + tokens)), "logprobs": {"content": entries}, "finish_reason": "stop"}
    return {"choices": [{**choice, "weight_versions": versions}]}


def made_up(**routes: Any) -> Routes:
    base: dict[str, Any] = {
        "/envgym/info": lambda body: INFO,
        "/metrics": lambda body: HttpReply(HTTPStatus.OK, b"vllm:num_preemptions_total 0\n", "text/plain"),
        "/inference/v1/generate": lambda body: answer((3, 3)),
    }
    return base | {path.replace("__", "/"): reply for path, reply in routes.items()}


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [{"temperature": 0.0}, {}, {"temperature": 0.7}, {"top_k": 5}], ids=str)
def test_generations_through_http_equal_those_of_the_policy_in_this_process_bit_for_bit(
    tmp_path: Path, rules: dict[str, Any]
) -> None:
    inside = TransformersPolicy(llama(), deterministic=False)
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        for place, context in enumerate(contexts(8)):
            item = request(context, seed=2**40 + place, top_logprobs=place % 3, stop_token_ids=(5, 6), **rules)
            assert ask(policy, [item]) == generate(inside, [item])


def test_logprobs_of_rows_equal_those_of_the_policy_in_this_process(tmp_path: Path) -> None:
    rows = [(), (5,), (5, 6, 7, 8)]
    expected = asyncio.run(TransformersPolicy(llama()).compute_logprobs(rows))
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        found = asyncio.run(policy.compute_logprobs(rows))
    assert found[:2] == [(), (0.0,)]
    assert found[2] == pytest.approx(expected[2], abs=1e-6)


def test_logprobs_of_rows_in_arrays_are_those_of_json_bit_for_bit(tmp_path: Path) -> None:
    rows = [(), (5,), *contexts(6)]
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        in_arrays = asyncio.run(policy.compute_logprobs(rows))
        link = policy._fleet.links[0]
        assert link.info.has_frames
        link.info = link.info._replace(has_frames=False)
        assert asyncio.run(policy.compute_logprobs(rows)) == in_arrays
    assert [len(row) for row in in_arrays] == [len(row) for row in rows]


def test_new_weights_sample_at_once_and_are_proved_by_their_checksums(tmp_path: Path) -> None:
    model = llama()
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        policy.update_weights(changed(model, 1.25), 4)
        item = request((5, 6, 7))
        found = ask(policy, [item])[0]
        link = policy._fleet.links[0]
        checked: Any = policy._loop.run(link.ask("POST", "/weight_checker", {"action": "checksum"}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    expected = generate(TransformersPolicy(model), [item])[0]
    assert found == replace(expected, policy_version=4)
    assert checked == {"checksums": {name: digest(parameter) for name, parameter in model.named_parameters()}}


def test_a_turn_that_an_update_meets_has_spans_of_both_versions(tmp_path: Path) -> None:
    model = llama()
    with serving(llama()) as served, client(tmp_path, served.http.url) as policy:
        began, decode, steps = threading.Event(), served._policy._model.decode, [0]

        def counted(*arguments: Any) -> torch.Tensor:
            steps[0] += 1
            if steps[0] == 4:
                began.set()
                while served.weights.hold is None and not served._policy._lock.is_held:
                    pass
            return decode(*arguments)

        served._policy._model.decode = counted  # type: ignore[method-assign, assignment]  # of this instance

        def update() -> None:
            began.wait()
            policy.update_weights(changed(model, 1.5), 9)

        updating = threading.Thread(target=update)
        updating.start()
        found = ask(policy, [request((5, 6, 7), max_new_tokens=10)])[0]
        updating.join()
    assert (found.policy_version, found.version_spans) == (0, (VersionSpan(0, 4), VersionSpan(9, 6)))


def test_versions_of_a_scripted_server_are_those_of_each_token(tmp_path: Path) -> None:
    routes = made_up(__inference__v1__generate=lambda body: answer((3, 1), (4, 0), (5, 2)))
    with scripted(routes) as server, client(tmp_path, server.url) as policy:
        found = ask(policy, [request((1, 2))])[0]
    assert (found.policy_version, found.spans) == (3, (VersionSpan(3, 1), VersionSpan(5, 2)))
    assert found.behavior_logprobs == (-0.5, -1.5, -2.5)


@pytest.mark.parametrize(
    "reply, reason",
    [
        (answer((3, 2)), "do not cover each of the 3 tokens once"),
        (answer((3, 1), (4, 1), (5, 3)), "do not cover each of the 3 tokens once"),
        ({"choices": []}, "no choice"),
        (answer((3, 3), logprobs=[-1.0]), "no log-prob for every token"),
        (answer((2, 3)), "sampled from version 2, but has version 3"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_a_policy_failure(tmp_path: Path, reply: Any, reason: str) -> None:
    routes = made_up(__inference__v1__generate=lambda body: reply)
    with (
        scripted(routes) as server,
        client(tmp_path, server.url, limits=replace(QUICK, retries=0)) as policy,
        pytest.raises(PolicyFailure, match=reason),
    ):
        ask(policy, [request((1, 2))])


# ---- servers that fail ----------------------------------------------------------------------------------------------


def test_requests_of_a_server_that_dies_are_answered_by_another(tmp_path: Path) -> None:
    items = [request((5, 6, 7), seed=seed, max_new_tokens=40) for seed in range(12)]
    expected = generate(TransformersPolicy(llama(), deterministic=False), items)
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving(llama())) for _ in range(2))
        policy = stack.enter_context(client(tmp_path, first.http.url, second.http.url))
        decode = first._policy._model.decode

        def die(*arguments: Any) -> torch.Tensor:
            first.drop_connections()
            return decode(*arguments)

        first._policy._model.decode = die  # type: ignore[method-assign, assignment]  # of this instance
        found = ask(policy, items)
    assert [item.token_ids for item in found] == [item.token_ids for item in expected]


def test_without_a_server_a_request_is_a_policy_failure_that_names_all(tmp_path: Path) -> None:
    limits = replace(QUICK, wait_s=0.2)
    with serving(llama()) as served, client(tmp_path, served.http.url, limits=limits) as policy:
        served.thread.run(served.http.close())
        with pytest.raises(PolicyFailure, match=r"(no policy server is up: )?http://127.0.0.1:\d+ is down"):
            ask(policy, [request((5, 6, 7))])


def test_a_server_that_returns_is_used_again_with_the_newest_weights(tmp_path: Path) -> None:
    state: dict[str, Any] = {"is_up": True, "version": "3", "digests": {}}

    def generated(body: Any) -> Any:
        return answer((int(state["version"]), 3)) if state["is_up"] else (503, {"error": "gone"})

    def updated(body: Any) -> Any:
        from envgym.agents.policies.weights.weight_store import StoredWeights

        state["digests"] = dict(StoredWeights.read(Path(body["update_info"]["directory"])).digests)
        return {}

    def finished(body: Any) -> Any:
        state["version"] = body["weight_version"]
        return {}

    routes = made_up(
        __envgym__info=lambda body: {**INFO, "weight_version": state["version"], "instance": str(state["is_up"])},
        __inference__v1__generate=generated,
        __pause=lambda body: {},
        __start_weight_update=lambda body: {},
        __update_weights=updated,
        __finish_weight_update=finished,
        __weight_checker=lambda body: {"checksums": state["digests"]},
        __resume=lambda body: {},
    )
    limits = replace(QUICK, retries=0, watch_s=1000)
    with scripted(routes) as server, client(tmp_path, server.url, limits=limits) as policy:
        policy.update_weights([("a", torch.ones(1))], 4)
        state["is_up"] = False
        with pytest.raises(PolicyFailure, match="503 gone"):
            ask(policy, [request((1, 2))])
        state.update(is_up=True, version="3", digests={})  # started anew, with the weights of its model
        link = policy._fleet.links[0]
        policy._loop.run(policy._fleet.look_at(link))
        assert (link.state, link.version, state["version"]) == ("up", 4, "4")
        assert ask(policy, [request((1, 2))])[0].policy_version == 4


def test_a_server_whose_update_fails_is_used_no_more(tmp_path: Path) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(serving(llama()))
        other = stack.enter_context(serving(llama(vocab_size=50)))
        policy = stack.enter_context(client(tmp_path, other.http.url, good.http.url))
        policy.update_weights(changed(llama(), 1.1), 1)
        assert {item.policy_version for item in ask(policy, [request((5, 6), seed=seed) for seed in range(8)])} == {1}
        described = policy._fleet.queue.describe()
        assert f"{other.http.url} is broken (ServerRefused: 400 lm_head.weight " in described
        assert "must have shape [50, 32], got [97, 32]" in described
        assert f"{good.http.url} is up" in described
        with pytest.raises(PolicyFailure, match="no policy server has the weights of version 2"):
            policy.update_weights([("a", torch.ones(1))], 2)


def test_weights_that_are_not_those_that_were_sent_break_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envgym.agents.policies.weights.served_weights.copy_weights", lambda pairs: None)
    with (
        serving(llama()) as served,
        client(tmp_path, served.http.url) as policy,
        pytest.raises(PolicyFailure, match=r"weights are not those of version 1, the first lm_head\.weight"),
    ):
        policy.update_weights(changed(llama(), 1.1), 1)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_server_never_has_more_requests_than_its_limit(tmp_path: Path) -> None:
    under_way = most = 0

    async def generated(http: HttpRequest) -> HttpReply:
        nonlocal under_way, most
        if http.path != "/inference/v1/generate":
            return HttpReply.of_json(INFO)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return HttpReply.of_json(answer((3, 3)))

    limits = replace(QUICK, max_concurrency=5, watch_s=1000)
    with (
        http_thread(HttpServer(generated)) as server,
        client(tmp_path, server.url, limits=limits) as policy,
    ):
        assert len(ask(policy, [request((1, 2), seed=seed) for seed in range(40)])) == 40
    assert most == 5


def test_preemptions_lower_the_limit_of_their_server(tmp_path: Path) -> None:
    counts = iter([b'vllm:num_preemptions_total{engine="0"} 3.0\n', b'vllm:num_preemptions_total{engine="0"} 3.0\n'])
    routes = made_up(__metrics=lambda body: HttpReply(HTTPStatus.OK, next(counts), "text/plain"))
    with scripted(routes) as server, client(tmp_path, server.url, limits=replace(QUICK, watch_s=1000)) as policy:
        link = policy._fleet.links[0]
        assert link.limit.limit == 8.0
        for _ in range(2):
            policy._loop.run(policy._fleet.look_at(link))
        assert link.limit.limit == 6.0


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "info, expected, sentence",
    [
        ({"protocol": 5}, {}, "protocol of the server must be 4, got 5"),
        ({"model_digest": "aa"}, {"model_digest": "bb"}, "model of the server must be bb, got aa"),
        ({"tokenizer_digest": "aa"}, {"tokenizer_digest": "bb"}, "tokenizer of the server must be bb, got aa"),
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, "dtype of the server must be float32, got bfloat16"),
        ({"other": 1}, {}, "server must be a policy server, got an answer of another shape"),
    ],
)
def test_a_server_of_something_else_is_refused(
    tmp_path: Path, info: dict[str, Any], expected: dict[str, str], sentence: str
) -> None:
    routes = made_up(__envgym__info=lambda body: {**INFO, **info})
    with scripted(routes) as server, pytest.raises(InvalidInput, match=sentence):
        ServedPolicy([server.url], transport=FileTransport(tmp_path), expected=ExpectedModel(**expected))


def test_the_twin_tells_its_model(tmp_path: Path) -> None:
    expected = ExpectedModel(model_digest(llama()), None, "float32")
    with serving(llama()) as served, client(tmp_path, served.http.url, expected=expected):
        pass
    with serving(llama(vocab_size=50)) as served, pytest.raises(InvalidInput, match="model of the server must be"):
        ServedPolicy([served.http.url], transport=FileTransport(tmp_path), expected=expected)


def test_a_server_that_is_no_policy_server_is_refused(tmp_path: Path) -> None:
    with scripted({}) as server, pytest.raises(InvalidInput, match="server must be a policy server, got 404"):
        ServedPolicy([server.url], transport=FileTransport(tmp_path))


def test_a_server_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"server must be reachable, got ConnectionFailed: .*\(http://127.0.0.1:9\)"):
        ServedPolicy(["http://127.0.0.1:9"], transport=FileTransport(tmp_path))


def test_a_wrong_token_is_told(tmp_path: Path) -> None:
    with serving(llama(), token="right") as served:
        with pytest.raises(InvalidInput, match=r"server must accept the token, got 401 token must be the server's"):
            ServedPolicy([served.http.url], transport=FileTransport(tmp_path), token="wrong")
        with client(tmp_path, served.http.url, token="right") as policy:
            assert len(ask(policy, [request((5, 6))])) == 1


def test_servers_of_different_weights_are_refused(tmp_path: Path) -> None:
    with (
        serving(llama(), version=1) as one,
        serving(llama(), version=2) as other,
        pytest.raises(InvalidInput, match=r"servers must serve one version, got \[1, 2\]"),
    ):
        ServedPolicy([one.http.url, other.http.url], transport=FileTransport(tmp_path))
