"""Named models: a directory, the policy as the run began, and a service; what is refused, and what fails later."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings, tiny_tokenizer
from envgym.core.messages import Message, Role
from envgym.errors import InvalidInput, PartyFailure, SettingsError
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.rows import scored_row
from envgym.trainer.build import build_run_context
from envgym.trainer.methods.annotators.base import LogprobModel
from envgym.trainer.models.endpoint import EndpointModel
from envgym.trainer.models.frozen import FrozenModel
from envgym.trainer.phases import dry_runs
from envgym.trainer.run import open_reference, prepare_models
from envgym.trainer.train import train
from tests.agents.policies.fake_server import HANG, Json, Server, running
from tests.support.tiny_runs import TINY, tiny_settings

T = TypeVar("T")
TOKENS = [(5, 6, 7, 8), (9, 10, 11)]


settings = partial(
    tiny_settings,
    run={"steps": 1},
    envs=[{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
    agent={"max_context_tokens": 512},
    rollout={"groups": 1, "group_size": 2},
    evaluation={"tasks": 2},
)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_snapshot_stays_what_the_policy_was(lora: dict[str, int] | None, tmp_path: Path) -> None:
    asked = settings(models={"first": {"kind": "snapshot"}}, model={"lora": lora})
    context = build_run_context(asked)
    prepare_models(context, tmp_path)
    snapshot = context.models["first"]
    assert isinstance(snapshot, LogprobModel)
    before = asyncio.run(context.policy.compute_logprobs(TOKENS))
    with torch.no_grad():
        for parameter in context.learner.parameters:
            parameter.add_(0.05)
    context.policy.set_version(1)
    assert asyncio.run(snapshot.compute_logprobs(TOKENS)) == [pytest.approx(row, abs=1e-5) for row in before]
    after = asyncio.run(context.policy.compute_logprobs(TOKENS))
    assert after[0][1:] != pytest.approx(before[0][1:], abs=1e-4)
    assert (tmp_path / "models" / "first").is_dir()


def test_a_local_model_says_what_the_same_model_says_as_a_policy(tmp_path: Path) -> None:
    context = build_run_context(settings(models={"teacher": {"kind": {"name": "local", "path": "tiny"}}}))
    teacher = context.models["teacher"]
    assert isinstance(teacher, FrozenModel)
    assert isinstance(teacher, LogprobModel)
    expected = asyncio.run(context.policy.compute_logprobs(TOKENS))
    assert asyncio.run(teacher.compute_logprobs(TOKENS)) == [pytest.approx(row, abs=1e-5) for row in expected]


def test_a_local_model_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    other = load("tiny")
    other.tokenizer.add_tokens(["<extra>"])
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    models = {"teacher": {"kind": {"name": "local", "path": str(tmp_path / "other")}}}
    with pytest.raises(InvalidInput, match=r"tokenizer must be that of the policy, got \d+ of \d+ tokens alike"):
        build_run_context(settings(models=models))


def test_a_dry_run_takes_the_policy_itself_for_its_snapshot() -> None:
    sections: dict[str, Any] = {"annotate": ["rlpr"], "models": {"initial": {"kind": "snapshot"}}}
    found = dry_runs([settings(**sections)])[0]
    values = [item for group in found.batch.groups for tree in group.trees for item in tree.annotations]
    assert [(item.name, item.error) for item in values] == [("rlpr", None)] * 2


def test_a_kl_term_may_compare_with_a_named_model(tmp_path: Path) -> None:
    """A reference that is the very model that trains gives the run of the snapshot, number for number."""

    def losses(name: str, **sections: Any) -> list[float]:
        objective = {"kl_coef": 0.5, "entropy_coef": 0.1}
        train(settings(tmp_path / name, objective=objective, optim={"epochs": 3, "lr": 0.01}, **sections))
        return [row["loss/kl_reference"] for row in RunDirectory.open(tmp_path / name).metrics()]

    named = losses("named", models={"reference": {"kind": {"name": "local", "path": "tiny"}}})
    assert named == losses("snapshot")
    assert named[0] > 0
    assert (tmp_path / "snapshot" / "reference").is_dir()
    assert not (tmp_path / "named" / "reference").exists()


def saved(folder: Path, model: Any) -> str:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def test_a_reference_of_another_size_is_read_in_its_own_width(tmp_path: Path) -> None:
    large = load("tiny", tiny=TinySettings.model_validate({**TINY, "hidden_size": 128})).model
    sections = {"reference": {"kind": {"name": "local", "path": saved(tmp_path / "large", large)}}}
    context = build_run_context(settings(objective={"kl_coef": 0.5}, models=sections))
    open_reference(context)
    assert context.learner.reference is not None
    rows = [scored_row(ids, first=1) for ids in TOKENS]
    with context.learner.reference() as module:
        batches = context.learner.micro_batches(rows, range(2))
        found = context.learner.forward.logprobs(rows, batches, 1.0, module).tolist()
    reference = context.models["reference"]
    assert isinstance(reference, FrozenModel)
    expected = asyncio.run(reference.compute_logprobs(TOKENS))
    assert [tuple(row[: len(ids)]) for row, ids in zip(found, TOKENS, strict=True)] == [
        pytest.approx(row, abs=1e-5) for row in expected
    ]


def test_a_reference_that_cannot_read_packs_is_refused_before_anything_trains(tmp_path: Path) -> None:
    sizes = {"vocab_size": len(tiny_tokenizer()), "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    mamba = AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes))
    reference = {"reference": {"kind": {"name": "local", "path": saved(tmp_path / "mamba", mamba)}}}
    asked = settings(tmp_path / "run", objective={"kl_coef": 0.5}, models=reference, sft={"episodes": 2})
    refusal = (
        r"model must compute packs as the policy does, got MambaForCausalLM \(models.reference\); set optim.packing"
    )
    with pytest.warns(UserWarning, match="shared prefixes"), pytest.raises(SettingsError, match=refusal):
        train(asked)
    assert not (tmp_path / "run").exists()
    build_run_context(settings(objective={"kl_coef": 0.5}, models=reference, optim={"packing": False}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running() as made:
        yield made


def says(content: str) -> Json:
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


def ask(server: Server, use: Callable[[EndpointModel], Awaitable[T]], **fields: Any) -> T:
    async def work() -> T:
        model = EndpointModel(None, base_url=server.url, model="judge", backoff_s=0.0, **fields)  # type: ignore[arg-type]  # unused
        try:
            return await use(model)
        finally:
            await model.close()

    return asyncio.run(work())


def hello(model: EndpointModel) -> Awaitable[str]:
    return model.reply([Message(role=Role.USER, content="hello")], seed=7, max_new_tokens=9)


def test_a_service_is_asked_greedily_and_within_its_limits(server: Server) -> None:
    server.script = [(503, "busy", {}), says("YES")]
    assert ask(server, hello) == "YES"
    assert [body["temperature"] for body in server.bodies] == [0.0, 0.0]
    assert server.bodies[-1]["seed"] == 7
    assert server.bodies[-1]["max_tokens"] == 9


@pytest.mark.parametrize(
    "script, fields, sentence",
    [
        ([HANG], {"deadline_s": 0.2}, "no answer within 0.2 s"),
        ([HANG], {"timeout_s": 0.1, "max_retries": 1}, "did not answer in 2 attempts; the last error: ReadTimeout"),
        ([(400, "no \x1b[2J such model", {})], {}, "refused the request: 400 no \\u001b[2J such model"),
        ([{"choices": []}], {"max_retries": 0}, "the response holds no choice"),
    ],
)
def test_a_service_that_fails_is_one_sentence_that_a_terminal_can_show(
    script: list[object], fields: dict[str, Any], sentence: str, server: Server
) -> None:
    server.script = script
    with pytest.raises(PartyFailure) as caught:
        ask(server, hello, **fields)
    assert sentence in str(caught.value)


def judge_at(url: str, **fields: Any) -> dict[str, Any]:
    kind = {"name": "endpoint", "base_url": url, "model": "m", "backoff_s": 0.0, **fields}
    return {"annotate": ["judge"], "models": {"judge": {"kind": kind}}}


def test_a_service_that_does_not_answer_is_refused_before_the_run_begins(server: Server, tmp_path: Path) -> None:
    server.script = [(404, "no such model", {})]
    with pytest.raises(SettingsError, match=r"served model must answer, got .*404 no such model \(m at http"):
        train(settings(tmp_path / "run", **judge_at(server.url)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fields, sentence", [({"deadline_s": 0}, "deadline_s must be above 0"), ({"timeout": 3}, "did you mean timeout_s")]
)
def test_a_bad_setting_of_a_service_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_run_context(settings(**judge_at("http://127.0.0.1:9/v1", **fields)))


def test_a_run_is_judged_by_a_service(server: Server, tmp_path: Path) -> None:
    server.script = [says("OK"), says("Sure.\nYES"), says("NO"), says("maybe")]
    train(settings(tmp_path / "run", **judge_at(server.url, max_concurrency=1)))
    row = RunDirectory.open(tmp_path / "run").metrics()[-1]
    assert (row["annotate/judge_count"], row["annotate/judge_failed"], row["annotate/judge_mean"]) == (2.0, 0.0, 0.5)
