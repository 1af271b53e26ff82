"""The policy of a served model against a server that answers as vLLM does, or as it should not."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.models.loading import load_tokenizer, resolve_model
from envgym.agents.policies.vllm.server_policy import VllmServerPolicy
from envgym.agents.protocols import FinishReason, Generation
from envgym.agents.settings import EndpointSettings, EvalSettings
from envgym.errors import InvalidInput, PolicyFailure, UnknownName
from tests.agents.policies.fake_server import HANG, Json, Pauses, Server
from tests.agents.policies.small_models import request

T = TypeVar("T")
PROMPT = (7, 8, 9)
PAGE: Json = {
    "data": [
        {"id": "m", "max_model_len": 33, "parent": None},
        {"id": "adapter", "max_model_len": None, "parent": "m"},
        {"id": "other"},
    ]
}


def says(
    logprobs: Sequence[float] = (-0.5, -1.5),
    *,
    prompt: Sequence[int] = PROMPT,
    finish: str = "length",
) -> Json:
    """Return a completion of tokens 5, 6 ... as vLLM writes it."""
    tokens = list(range(5, 5 + len(logprobs)))
    table = {
        "token_logprobs": list(logprobs),
        "tokens": [f"token_id:{token}" for token in tokens],
    }
    choice = {"token_ids": tokens, "prompt_token_ids": list(prompt), "finish_reason": finish, "logprobs": table}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}


def without(completion: Json, field: str, instead: object = None) -> Json:
    """Return it with another value in a field of its choice."""
    return {**completion, "choices": [{**completion["choices"][0], field: instead}]}


PROBED = says([0.0] * 8, prompt=(1, 2, 3))
"""The first answer of a server that states what it samples from; -1 instead of 0 of one that does not."""


def ask(
    server: Server,
    use: Callable[[VllmServerPolicy], Awaitable[T]],
    *script: object,
    probed: object = PROBED,
    **settings: Any,  # of EndpointSettings
) -> T:
    server.script, server.page = [probed, *script], PAGE

    async def go() -> T:
        merged = EndpointSettings.model_validate({"base_url": server.url, "model": "m", "max_retries": 1, **settings})
        async with VllmServerPolicy(merged, version=4, sleep=Pauses()) as policy:
            return await use(policy)

    return asyncio.run(go())


def sampled(**rules: Any) -> Callable[[VllmServerPolicy], Awaitable[Generation]]:  # of Sampling
    return lambda policy: policy.generate(request(PROMPT, seed=2**62, **rules))


# ---- what is said on the wire ---------------------------------------------------------------------------------------


def test_a_request_leaves_nothing_to_the_servers_own_defaults(server: Server) -> None:
    ask(server, sampled(temperature=0.7, top_p=0.9, top_k=5, stop_token_ids=(2,)), says())
    assert server.paths == ["/v1/completions"] * 2
    assert server.bodies[1] == {
        "model": "m", "cache_salt": "version 4", "prompt": [7, 8, 9], "temperature": 0.7, "top_p": 0.9, "top_k": 5,
        "max_tokens": 12, "stop_token_ids": [2], "ignore_eos": True, "seed": 2**62, "logprobs": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "rules, behavior, raw",
    [
        ({}, (-0.5, -1.5), (-0.5, -1.5)),
        ({"temperature": 0.5}, (-0.5, -1.5), None),
        ({"temperature": 0.0}, (0.0, 0.0), (-0.5, -1.5)),
    ],
)
def test_an_answer_is_read_as_what_its_log_probs_mean(
    server: Server, rules: Any, behavior: object, raw: object
) -> None:
    found = ask(server, sampled(**rules), says(finish="stop"))
    assert (found.token_ids, found.behavior_logprobs, found.raw_logprobs) == ((5, 6), behavior, raw)
    assert (found.finish_reason, found.policy_version, found.num_prefilled) == (FinishReason.STOP, 4, 3 - 2)


def test_scores_begin_with_zero_and_are_those_of_the_prompts_tokens(server: Server) -> None:
    table = [None, {"8": {"logprob": -2.0, "rank": 9}}, {"9": {"logprob": -4.0, "rank": 2}}]
    found = ask(server, lambda policy: policy.compute_logprobs([PROMPT, ()]), without(says(), "prompt_logprobs", table))
    assert found == [(0.0, -2.0, -4.0), ()]
    assert (server.bodies[1]["max_tokens"], server.bodies[1]["prompt_logprobs"]) == (1, 0)


@pytest.mark.parametrize("name, limit", [("m", 29), ("adapter", 29), ("other", 500)])
def test_a_sample_ends_where_the_served_model_does(server: Server, name: str, limit: int) -> None:
    # 33 positions: one is left free for scoring, 3 are the prompt's.
    ask(server, sampled(max_new_tokens=500), says(), model=name)
    assert server.bodies[1]["max_tokens"] == limit


# ---- weights --------------------------------------------------------------------------------------------------------


def test_weights_are_the_servers_and_a_version_is_a_salt(server: Server) -> None:
    async def update(policy: VllmServerPolicy) -> Generation:
        with pytest.raises(InvalidInput, match=r"weights must stay as they are served, got version 5 \(http"):
            policy.update_weights([("model.norm.weight", torch.zeros(1))], 5)
        assert policy.version == 4
        policy.set_version(6)
        policy.sleep()
        policy.wake()
        return await policy.generate(request(PROMPT))

    assert ask(server, update, says()).policy_version == 6
    assert [body["cache_salt"] for body in server.bodies] == ["version 4", "version 6"]


# ---- servers that cannot serve --------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["token_ids", "prompt_token_ids"])
def test_a_server_without_token_ids_is_refused_before_anything_is_sampled(server: Server, missing: str) -> None:
    says_it = f"endpoint must return token ids, got a completion without {missing} .* without --backend vllm"
    with pytest.raises(PolicyFailure, match=says_it):
        ask(server, sampled(), probed=without(PROBED, missing))
    assert len(server.bodies) == 1, "a second attempt would find the same"


def test_a_server_that_computes_another_prompt_is_refused(server: Server) -> None:
    with pytest.raises(PolicyFailure, match="endpoint must compute the tokens that it is sent, got 2 of 3 "):
        ask(server, sampled(), says(prompt=(8, 9)))
    with pytest.raises(PolicyFailure, match="endpoint must compute the tokens that it is sent, got 3 others "):
        ask(server, sampled(), says(prompt=(8, 9, 7)))


def test_log_probs_of_another_distribution_are_refused_where_they_differ(server: Server) -> None:
    raw = says([-1.0] * 8, prompt=(1, 2, 3))
    for rules in ({}, {"temperature": 0.0}):
        assert ask(server, sampled(**rules), says(), probed=raw).raw_logprobs == (-0.5, -1.5)
    for cut in ({"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}):
        with pytest.raises(PolicyFailure, match=r"vLLM server must state log-probs .*logprobs-mode processed_logprobs"):
            ask(server, sampled(**cut), says(), probed=raw)


def test_a_model_that_is_not_served_is_named_with_those_that_are(server: Server) -> None:
    with pytest.raises(UnknownName, match=r"served model must be a known name, got 'adaptor' .*did you mean adapter"):
        ask(server, sampled(), model="adaptor")


@pytest.mark.parametrize(
    "trouble",
    [(503, {"error": {"message": "busy"}}, {}), pytest.param(HANG, marks=pytest.mark.slow), "{not json",
     {"choices": []}, {"choices": [1]}, without(says(), "logprobs"),
     without(says(), "logprobs", {"token_logprobs": [None, None]})],
    ids=["503", "hang", "no JSON", "no choice", "strange choice", "no log-probs", "empty log-probs"],
)  # fmt: skip
def test_what_may_pass_is_tried_again_and_ends(server: Server, trouble: object) -> None:
    timeout_s = 1.5 if trouble is HANG else 30.0
    assert ask(server, sampled(), trouble, says(), timeout_s=timeout_s).token_ids == (5, 6)
    with pytest.raises(PolicyFailure, match=r"/v1/completions did not answer in 2 attempts; the last error: "):
        ask(server, sampled(), trouble, timeout_s=timeout_s)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_will_not_pass_fails_at_once(server: Server, status: int) -> None:
    with pytest.raises(PolicyFailure, match=f"/v1/completions refused the request: {status} no"):
        ask(server, sampled(), (status, {"error": {"message": "no"}}, {}))
    assert len(server.bodies) == 2


def test_a_server_that_is_gone_or_speaks_something_else_is_a_failure_with_the_reason(server: Server) -> None:
    with pytest.raises(PolicyFailure, match="/v1/models did not answer in 2 attempts; the last error: ConnectError"):
        ask(server, sampled(), base_url="http://127.0.0.1:9/v1")
    server.page = {"models": []}

    async def go() -> None:
        settings = EndpointSettings(base_url=server.url, model="m", max_retries=0)
        async with VllmServerPolicy(settings):
            pass

    with pytest.raises(PolicyFailure, match="the response lists no models"):
        asyncio.run(go())


def test_requests_out_of_range_are_refused_before_they_are_sent(server: Server) -> None:
    with pytest.raises(InvalidInput, match="temperature must be in range, got -1"):
        ask(server, sampled(temperature=-1.0))
    with pytest.raises(PolicyFailure, match="context must leave one of the model's 32 positions, got 32 tokens"):
        ask(server, lambda policy: policy.generate(request([5] * 32)))
    with pytest.raises(PolicyFailure, match="sequence must fit the model's 32 positions, got 33 tokens"):
        ask(server, lambda policy: policy.compute_logprobs([(5,) * 33]))
    with pytest.raises(PolicyFailure, match="not finite"):
        ask(server, sampled(), says([-0.5, -9999.0]))


# ---- evaluation -----------------------------------------------------------------------------------------------------


def evaluation(server: Server, directory: Path, **changes: Any) -> EvalSettings:  # further settings
    endpoint = {"base_url": server.url, "model": "m", "max_retries": 0}
    server.page = PAGE | {"data": [{"id": "m"}]}
    return EvalSettings.model_validate(
        {
            "run": {"directory": str(directory)},
            "model": {"name": "m", "tokenizer": "tiny"},
            "engine": {"backend": "vllm_server", "endpoint": endpoint},
            "agent": {"name": "plain"},
            "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
            "evaluation": {"tasks": 3},
            **changes,
        }
    )


@pytest.mark.parametrize("name, num_asked", [("chain", 3), ("best_of", 6)])
def test_agents_and_searches_play_by_exact_tokens(server: Server, tmp_path: Path, name: str, num_asked: int) -> None:
    tokenizer = load_tokenizer(resolve_model("tiny"))
    server.script = [PROBED, lambda body: says([-0.5] * 4, prompt=body["prompt"], finish="stop")]
    search = {"name": name} | ({"n": 2} if name == "best_of" else {})
    (record,) = run_evaluation(
        evaluation(server, tmp_path / "run", evaluation={"tasks": 3, "search": search})
    ).evaluations
    assert record.costs["tokens_generated"] == 4.0 * num_asked / 3
    assert [len(rewards) for rewards in record.rewards.values()] == [1, 1, 1]
    assert all(None not in rewards for rewards in record.rewards.values()), "none is invalid"
    asked = [body["prompt"] for body in server.bodies[1:]]
    assert len(asked) == num_asked
    assert all(str(tokenizer.decode(prompt)).endswith("<|im_start|>assistant\n") for prompt in asked)


def test_an_evaluation_that_the_server_cannot_serve_is_refused_before_anything_is_written(
    server: Server, tmp_path: Path
) -> None:
    server.script = [without(PROBED, "token_ids")]
    with pytest.raises(PolicyFailure, match="endpoint must return token ids"):
        run_evaluation(evaluation(server, tmp_path / "run"))
    server.script = [says([-1.0] * 8, prompt=(1, 2, 3))]
    with pytest.raises(PolicyFailure, match="vLLM server must state log-probs"):
        run_evaluation(evaluation(server, tmp_path / "run", evaluation={"tasks": 1, "temperature": 0.5}))
    with pytest.raises(InvalidInput, match=r"tokenizer must be found, got m .*name the served model's own with --tok"):
        run_evaluation(evaluation(server, tmp_path / "run", model={"name": "m"}))
    assert not (tmp_path / "run").exists()
