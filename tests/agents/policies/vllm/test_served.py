"""The policy of `envgym policy-server --engine vllm`, run by vLLM on the CPU, beside transformers' numbers."""

import asyncio
import copy
import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from envgym.agents.models.loading import load
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.weights.transport import (
    FileTransport,
    GroupTransport,
    SharedTransport,
    WeightTransport,
    WeightUpdate,
)
from envgym.agents.policies.weights.weight_store import compute_digests
from envgym.agents.protocols import EarlierTurn, GenerateRequest, Generation
from envgym.errors import InvalidInput, PolicyFailure
from tests.agents.policies.small_models import adapted, raw_logprobs, request, train_adapters
from tests.support.retrievers import serve, served_url

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CPU = torch.device("cpu")
CONTEXT = tuple(range(40, 140))
LIMITS = ClientLimits(timeout_s=120, update_timeout_s=120, retries=0)
OPTIONS = "--engine vllm --threads 1 --cache-gib 0.1 --max-context 1000 --dtype"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the tiny model, which ties its head to its embedding, and asks for a token."""
    monkeypatch.setenv("ENVGYM_POLICY_TOKEN", "right")
    with serve("policy-server", "tiny", *OPTIONS.split(), "float32", cache=tmp_path / "cache") as printed:
        yield served_url(printed.readline())


@pytest.fixture
def model() -> LlamaForCausalLM:
    loaded = load("tiny", dtype="float32", device="cpu").model
    assert isinstance(loaded, LlamaForCausalLM)
    return loaded


@torch.no_grad()
def change(model: PreTrainedModel, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.02)


def connect(url: str, folder: Path, transport: FileTransport | None = None) -> ServedPolicy:
    return ServedPolicy([url], transport=transport or FileTransport(folder), limits=LIMITS, token="right")


def generate(policy: ServedPolicy, item: GenerateRequest) -> Generation:
    return asyncio.run(policy.generate(item))


def live_digests(policy: ServedPolicy) -> dict[str, str]:
    answer: Any = policy._loop.run(policy._fleet.links[0].ask("POST", "/weight_checker", {"action": "checksum"}))
    digests: dict[str, str] = answer["checksums"]
    return digests


def largest_gap(policy: ServedPolicy, model: LlamaForCausalLM) -> float:
    found = asyncio.run(policy.compute_logprobs([CONTEXT]))[0]
    expected = raw_logprobs(model, CONTEXT)
    return max(abs(found[place + 1] - expected[place, token].item()) for place, token in enumerate(CONTEXT[1:]))


class StaleTransport(FileTransport):
    """Sends servers to the files of the version before, with the digests of the new one."""

    before: WeightUpdate | None = None

    def publish(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, *, base: WeightUpdate | None = None
    ) -> WeightUpdate:
        update, before = super().publish(named_tensors, version, base=base), self.before
        self.before = update
        return update if before is None else update._replace(update_info=before.update_info)


def test_vllm_samples_from_weights_and_adapters_that_it_is_sent_and_proves_it(
    url: str, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"server must accept the token, got 401 token must be the server's"):
        ServedPolicy([url], transport=FileTransport(tmp_path / "other"), token="wrong")
    policy = connect(url, tmp_path / "weights", StaleTransport(tmp_path / "weights"))
    try:
        assert policy.accepts_weights
        info = policy._fleet.links[0].info
        assert (info.engine, info.dtype, info.max_context, policy.version) == ("vllm", "float32", 1000, 0)
        assert live_digests(policy) == compute_digests(merged_weights(model))
        assert largest_gap(policy, model) < 1e-4
        assert generate(policy, request(CONTEXT, max_new_tokens=2)).num_prefilled == 100 - 3 * 32

        check_frames(policy)
        version = check_adapters(url, model, tmp_path / "adapters")
        check_updates(policy, model, version + 1)
    finally:
        policy.close()


def check_updates(policy: ServedPolicy, model: LlamaForCausalLM, version: int) -> None:
    """Send new weights while the server samples from those of the version before, and then the planted fault."""
    change(model, 1)
    assert largest_gap(policy, model) > 0.01
    spans = _update_while_sampling(policy, model, version=version)
    assert [version for version, _ in spans] == [version - 1, version]
    assert sum(count for _, count in spans) == 800
    assert live_digests(policy) == compute_digests(merged_weights(model))
    found = generate(policy, request(CONTEXT, max_new_tokens=2))
    assert (found.num_prefilled, found.policy_version) == (100, version), "no block of older weights is found"
    assert largest_gap(policy, model) < 1e-4

    change(model, 2)  # a planted fault: the files are those of the version before
    broken = rf"is broken \(PolicyFailure: \d+ weights are not those of version {version + 1}"
    with pytest.raises(PolicyFailure, match=broken):
        policy.update_weights(merged_weights(model), version + 1)
    with pytest.raises(PolicyFailure, match="no policy server is up"):
        generate(policy, request(CONTEXT))


def check_frames(policy: ServedPolicy) -> None:
    """Compare answers in arrays, to whole and to continued contexts, with those of vLLM's own route."""
    link = policy._fleet.links[0]
    framed_info, plain_info = link.info, link.info._replace(has_frames=False)
    assert framed_info.has_frames
    sent: list[bytes] = []
    send = link.send

    async def noting(path: str, body: bytes, **options: Any) -> bytes:
        sent.append(body)
        return await send(path, body, **options)

    link.send = noting  # type: ignore[method-assign]  # of this instance
    first = request(CONTEXT, max_new_tokens=8, top_logprobs=2, seed=5)
    turn = generate(policy, first)
    context = first.token_ids + turn.token_ids + (7, 8, 9)
    second = replace(first, token_ids=context, seed=6, continues=EarlierTurn(first.token_ids, turn, context))
    framed = [turn, generate(policy, second)]
    framed_rows = asyncio.run(policy.compute_logprobs([context]))
    assert len(sent[0]) - len(sent[1]) == 4 * (len(first.token_ids) - 3), "of the second context, 3 tokens were sent"
    link.info = plain_info
    plain = [generate(policy, item) for item in (first, second)]
    assert asyncio.run(policy.compute_logprobs([context])) == framed_rows
    link.info = framed_info
    assert [replace(item, num_prefilled=0) for item in framed] == [replace(item, num_prefilled=0) for item in plain]
    assert len(sent) == 3


def _update_while_sampling(policy: ServedPolicy, model: LlamaForCausalLM, *, version: int) -> list[tuple[int, int]]:
    """Update when a request has begun; return versions and numbers of tokens of its answer."""
    answers = list[Generation]()
    long = request(CONTEXT, max_new_tokens=800)
    sampling = threading.Thread(target=lambda: answers.append(generate(policy, long)))
    sampling.start()
    link = policy._fleet.links[0]
    while True:
        lines = str(policy._loop.run(link.ask("GET", "/metrics"))).splitlines()
        running = [line for line in lines if line.startswith("vllm:num_requests_running{")]
        if running and running[0].endswith(" 1.0"):
            break
    policy.update_weights(merged_weights(model), version)
    sampling.join()
    return [(span.policy_version, span.num_tokens) for span in answers[0].spans]


def test_in_bfloat16_fused_layers_are_read_back_bit_for_bit_and_a_failed_update_breaks_the_server(
    tmp_path: Path,
) -> None:
    model: Any = load("tiny", dtype="bfloat16", device="cpu").model  # a LlamaForCausalLM
    folder = tmp_path / "weights"
    with serve("policy-server", "tiny", *OPTIONS.split(), "bfloat16", cache=tmp_path / "cache") as printed:
        policy = ServedPolicy([served_url(printed.readline())], transport=FileTransport(folder), limits=LIMITS)
        try:
            change(model, 1)
            policy.update_weights(merged_weights(model), 1)
            assert live_digests(policy) == compute_digests(merged_weights(model))
            _update_by_other_ways(policy, model)
            with pytest.raises(PolicyFailure, match=r"is broken \(ServerRefused: 500 .*new weights must be the 38"):
                policy.update_weights(list(merged_weights(model))[:-1], 6)
            link = policy._fleet.links[0]
            for path in ("/resume", "/inference/v1/generate"):
                with pytest.raises(Exception, match=r"503 the server is broken, as /update_weights failed"):
                    policy._loop.run(link.ask("POST", path, {}))
        finally:
            policy.close()


def _update_by_other_ways(policy: ServedPolicy, model: PreTrainedModel) -> None:
    """Send two versions by gloo, over one group, and two in shared memory."""
    cpu = torch.device("cpu")
    ways: list[WeightTransport] = [GroupTransport("gloo", device=cpu, timeout_s=60), SharedTransport(cpu)]
    for number, transport in enumerate(ways):
        other = ServedPolicy([policy._fleet.links[0].url], transport=transport, limits=LIMITS)
        try:
            for version in (2 + 2 * number, 3 + 2 * number):
                change(model, version)
                other.update_weights(merged_weights(model), version)
                assert live_digests(other) == compute_digests(merged_weights(model))
                assert generate(other, request(CONTEXT)).policy_version == version
        finally:
            other.close()


def check_adapters(url: str, model: LlamaForCausalLM, folder: Path) -> int:
    """Add adapters to the base that a server was started with, and to another one, by every transport.

    Returns: the last version that the server was sent: the weights that it was started with.
    """
    transports: list[WeightTransport] = [
        FileTransport(folder),
        SharedTransport(CPU),
        GroupTransport("gloo", device=CPU, timeout_s=60),
    ]
    policies = [ServedPolicy([url], transport=one, limits=LIMITS, token="right") for one in transports]
    versions = itertools.count(1)
    base, lora = copy.deepcopy(model), adapted(copy.deepcopy(model), 2)
    try:
        for policy in policies:
            for _ in range(2):
                add_adapters(policy, lora, next(versions))
                assert largest_gap(policy, base) > 0.01
        for policy in policies:
            version = next(versions)
            change(base, version)  # another base: all weights, without adapters, and adapters again
            policy.update_weights(base.named_parameters(), version)
            assert largest_gap(policy, base) < 1e-4
            add_adapters(policy, lora, next(versions))
        last = next(versions)
        policies[0].update_weights(merged_weights(model), last)
    finally:
        for policy in policies:
            policy.close()
    return last


def add_adapters(policy: ServedPolicy, lora: Any, version: int) -> None:
    """Update to new adapters, and compare with transformers."""
    train_adapters(lora, seed=version)
    policy.update_weights(merged_weights(lora), version)
    plain: Any = load("tiny", dtype="float32", device="cpu").model
    plain.load_state_dict(dict(merged_weights(lora)), strict=False)  # the head is tied
    assert largest_gap(policy, plain) < 1e-4
