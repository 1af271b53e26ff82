"""Numbers that `benchmarks/gpu.py` checks on a device: of attention, of packed rows, of what the policy samples.

Inputs are drawn from fixed seeds; models have random weights. With `is_dry` everything is small enough for a CPU.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.packing import as_train_rows
from envgym.agents.policies.engine.llama_forward import LlamaForward
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation, Sampling
from envgym.trainer.batch.packs import build_pack, build_trie
from envgym.trainer.learner.forward import ForwardPass
from envgym.trainer.learner.packing.attention import TreeMask, tree_attention
from envgym.trainer.learner.settings import OptimSettings

VOCABULARY: Final = 509
WINDOW: Final = 48
"""Tokens that a sliding window shows."""
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Rows = list[tuple[int, ...]]


class Bounds(NamedTuple):
    """Largest gaps by dtype; float32 products are exact to float32, not to TF32, whose gaps would be near 1e-3."""

    attention: float
    """Of attention and its gradients against float64, as a share of their root mean square."""
    logprobs: float
    """Mean over trained tokens, packed against padded rows, nats."""
    gradient: float
    """Packed against padded rows, as a share of its root mean square."""
    sampled: float
    """Mean over sampled tokens, against a plain forward pass, nats."""
    regret: float
    """Most that a greedy token is less probable than the most probable one of a plain forward pass, nats."""


BOUNDS: Final = {
    "float32": Bounds(attention=1e-5, logprobs=1e-5, gradient=1e-4, sampled=1e-5, regret=1e-4),
    "bfloat16": Bounds(attention=2e-2, logprobs=2e-2, gradient=5e-2, sampled=2e-2, regret=2e-1),
}


class Check(NamedTuple):
    name: str
    value: float
    bound: float

    @property
    def is_passed(self) -> bool:
        """False also where the value is not a number."""
        return self.value <= self.bound

    def to_json(self) -> dict[str, object]:
        return {**self._asdict(), "passed": self.is_passed}


class Checked(NamedTuple):
    checks: list[Check]
    numbers: dict[str, object]
    """What has no bound."""

    def to_json(self) -> dict[str, object]:
        return {"checks": [check.to_json() for check in self.checks], **self.numbers}


def uneven_rows(seed: int, *, trunk: int, turn: int) -> Rows:
    """Return the paths of a tree of depth 3: uneven turns of at most `turn` tokens, 2 or 3 branches, early ends."""
    rng = random.Random(seed)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(length))

    open_paths, rows = [draw(trunk)], []
    for depth in range(3):
        grown = [path + draw(rng.randint(1, turn)) for path in open_paths for _ in range(rng.randint(2, 3))]
        ended = [depth == 2 or (place > 0 and rng.random() < 0.25) for place in range(len(grown))]
        rows += [path for path, is_over in zip(grown, ended, strict=True) if is_over]
        open_paths = [path for path, is_over in zip(grown, ended, strict=True) if not is_over]
    return rows


def relative_gap(found: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the difference, as a share of that of what is expected."""
    found, expected = found.double(), expected.double()
    return ((found - expected).square().mean() / expected.square().mean()).sqrt().item()


# ---- packing ---------------------------------------------------------------------------------------------------------


def check_attention(device: torch.device, is_dry: bool) -> Checked:
    """Compare attention over packs of several lengths with dense attention in float64, forward and backward.

    On CUDA it is FlexAttention, compiled; `graphs` counts its compilations after each length, in the order run.
    """
    sizes = [(20, 12), (30, 20)] if is_dry else [(130, 60), (200, 90), (257, 33), (400, 100)]
    checks: list[Check] = []
    graphs: dict[str, list[int]] = {}
    lengths: list[int] = []
    for name, dtype in DTYPES.items():
        for kind, window in (("full", None), ("sliding", WINDOW)):
            worst, counts = 0.0, []
            for seed, (trunk, turn) in enumerate(sizes):
                mask = _tree_mask(uneven_rows(seed, trunk=trunk, turn=turn), device, window)
                lengths = [*lengths, len(mask)] if len(lengths) < len(sizes) else lengths
                worst = _worst(worst, _attention_gap(mask, dtype, device))
                counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
            checks.append(Check(f"{name} {kind}", worst, BOUNDS[name].attention))
            graphs[f"{name} {kind}"] = counts
    return Checked(checks, {"pack_lengths": lengths, "graphs": graphs})


def _worst(one: float, other: float) -> float:
    """Return the larger number, or the one that is none."""
    return one if math.isnan(one) or one > other else other


def _tree_mask(rows: Rows, device: torch.device, window: int | None) -> TreeMask:
    def within(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def within_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - WINDOW)

    trie = build_trie(rows, range(len(rows)))
    pack = build_pack(rows, [[True] * len(row) for row in rows], trie, range(len(rows)), device)
    return TreeMask(pack.ends_N, pack.depths_N, within if window is None else within_window)


def _attention_gap(mask: TreeMask, dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest gap of the output and of the gradients by queries, keys and values; 4 heads on 2."""
    generator = torch.Generator().manual_seed(len(mask))
    shapes = [(1, heads, len(mask), 64) for heads in (4, 2, 2, 4)]
    query, key, value, grad = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)

    def run(attend: Callable[..., Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
        leaves = [part.detach().requires_grad_() for part in parts]
        output = attend(*leaves)
        output.backward(grad.to(output.dtype))
        return [output, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def packed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended, _ = tree_attention(nn.Identity(), query, key, value, mask)
        return attended.transpose(1, 2)

    def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        places = torch.arange(len(mask), device=device)
        key, value = (part.repeat_interleave(2, dim=1) for part in (key, value))
        scores = (query @ key.transpose(2, 3)) * 64**-0.5
        seen = mask.attends(places[:, None], places)
        output: Tensor = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ value
        return output

    found = run(packed, [query, key, value])
    expected = run(dense, [part.double() for part in (query, key, value)])
    gaps = [relative_gap(one, other) for one, other in zip(found, expected, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def small_model(device: torch.device, dtype: torch.dtype, *, mixed: bool = False) -> PreTrainedModel:
    """Return a Qwen2 of four layers with heads of 64 numbers; `mixed`: every other layer has a sliding window."""
    torch.manual_seed(0)
    kinds: dict[str, Any] = {}  # settings of Qwen2Config
    if mixed:
        layers = ["sliding_attention", "full_attention"] * 2
        kinds = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": layers}
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        **kinds,
    )
    model: PreTrainedModel = Qwen2ForCausalLM(config)
    nn.Module.to(model, device=device, dtype=dtype).eval()
    return model


def check_packing(device: torch.device, is_dry: bool) -> Checked:
    """Compare packed with padded rows through a whole model: log-probs, entropies and the gradient of all weights."""
    sizes = [(20, 8)] if is_dry else [(150, 60), (300, 90)]
    checks: list[Check] = []
    for name, dtype in DTYPES.items():
        logprobs_gap = gradient_gap = unpacked = 0.0
        for seed, (trunk, turn) in enumerate(sizes):
            rows = uneven_rows(seed, trunk=trunk, turn=turn)
            packed, padded = (_scored(rows, trunk, device, dtype, packing=packing) for packing in (True, False))
            unpacked = max(unpacked, float(not packed.packs))
            gap = (packed.logprobs_NT - padded.logprobs_NT).abs().sum() / padded.num_trained
            logprobs_gap = _worst(logprobs_gap, gap.item())
            gradient_gap = _worst(gradient_gap, relative_gap(packed.gradient, padded.gradient))
        checks += [
            Check(f"{name} models that refuse packs", unpacked, 0.0),
            Check(f"{name} log-probs, nats", logprobs_gap, BOUNDS[name].logprobs),
            Check(f"{name} gradient", gradient_gap, BOUNDS[name].gradient),
        ]
    return Checked(checks, {})


def check_compiled(device: torch.device, is_dry: bool) -> Checked:
    """Compare compiled with plain layers on packs; a dry run, which need not have a compiler, runs plain ones twice."""
    checks: list[Check] = []
    trunk, turn = (20, 8) if is_dry else (300, 90)
    rows = uneven_rows(0, trunk=trunk, turn=turn)
    for name, dtype in DTYPES.items():
        plain = _scored(rows, trunk, device, dtype, packing=True)
        compiled = _scored(rows, trunk, device, dtype, packing=True, compiles=not is_dry)
        gap = (compiled.logprobs_NT - plain.logprobs_NT).abs().sum() / plain.num_trained
        checks += [
            Check(f"{name} log-probs, nats", gap.item(), BOUNDS[name].logprobs),
            Check(f"{name} gradient", relative_gap(compiled.gradient, plain.gradient), BOUNDS[name].gradient),
            Check(f"{name} with and without gradient, nats", compiled.without_gradient, 0.0),
        ]
    return Checked(checks, {})


class _Scored(NamedTuple):
    packs: bool
    logprobs_NT: Tensor
    num_trained: int
    gradient: Tensor
    without_gradient: float
    """The largest difference to the log-probs of a pass that keeps nothing for a gradient."""


def _scored(
    rows: Rows, trunk: int, device: torch.device, dtype: torch.dtype, *, packing: bool, compiles: bool = False
) -> _Scored:
    """Score rows, and differentiate a random sum of their log-probs and a tenth of their entropies."""
    model = small_model(device, dtype, mixed=True)
    forward = ForwardPass(model, OptimSettings(packing=packing, micro_batch_tokens=2048), device=device)
    if compiles:
        forward.compile_layers()
    train_rows = as_train_rows([(list(row), trunk) for row in rows])
    shape = (len(rows), max(map(len, rows)))
    factors_NT = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    logprobs_NT = torch.zeros(shape, device=device)
    batches = forward.micro_batches(train_rows, range(len(rows)))
    without_NT = forward.logprobs(train_rows, batches, temperature=1.0)
    for batch in batches:
        with forward.mode():
            scored = forward.hidden_states(batch).logprobs(temperature=1.0, with_entropy=True)
        assert scored.entropies_BT is not None, "asked for"
        logprobs_NT[batch.row_slice] = scored.logprobs_BT.detach()
        (factors_NT[batch.row_slice] * (scored.logprobs_BT + 0.1 * scored.entropies_BT)).sum().backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    without_gradient = (logprobs_NT - without_NT).abs().max().item()
    num_trained = sum(sum(row.loss_mask) for row in train_rows)
    return _Scored(forward.packs, logprobs_NT, num_trained, gradient, without_gradient)


# ---- sampling --------------------------------------------------------------------------------------------------------


def check_sampling(device: torch.device, is_dry: bool) -> Checked:
    """Compare what the policy samples, in two turns, with plain forward passes over its contexts and tokens.

    Sequences join and leave (more requests than rows, uneven ends), groups share their context, second turns go on
    from first ones; by the forward pass for Llama-shaped models, and by the model's own modules.
    """
    checks: list[Check] = []
    used: dict[str, bool] = {}
    recorded: dict[str, bool] = {}
    for name, dtype in DTYPES.items():
        for path in ("llama", "modules"):
            for max_batch, deterministic in ((5, True), (64, False)):
                model = small_model(device, dtype)
                if path == "modules":
                    model.model.layers[0].register_forward_hook(lambda *_: None)  # the modules must be called then
                policy = TransformersPolicy(model, max_batch=max_batch, deterministic=deterministic)
                label = f"{name} {path} batch {max_batch}"
                checks += _sampling_checks(policy, model, label, BOUNDS[name], is_dry)
                used[label] = isinstance(policy._model._run, LlamaForward)
                recorded[label] = policy._model._graphs is not None
    expected = {label: " llama " in label for label in used}
    not_recorded = sum(used[label] and not recorded[label] for label in used) if device.type == "cuda" else 0
    checks.append(Check("forward passes of the wrong kind", sum(used[key] != expected[key] for key in used), 0.0))
    checks.append(Check("policies whose decoding steps were not recorded", not_recorded, 0.0))
    return Checked(checks, {})


def _sampling_checks(
    policy: TransformersPolicy, model: PreTrainedModel, label: str, bounds: Bounds, is_dry: bool
) -> list[Check]:
    rng = random.Random(0)
    count, longest, tokens = (4, 30, 6) if is_dry else (12, 300, 48)
    contexts = [tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))) for _ in range(count)]
    first = [
        _request(context, seed=seed, greedy=seed == 0, max_new_tokens=rng.randint(1, tokens))
        for context in contexts
        for seed in range(3)
    ]
    answers = _generate(policy, first)
    second = [
        _request(
            (*asked.token_ids, *answer.token_ids, *range(5)), seed=7, greedy=number % 2 == 0, max_new_tokens=tokens
        )
        for number, (asked, answer) in enumerate(zip(first, answers, strict=True))
    ]
    later = _generate(policy, second)
    gaps: list[Tensor] = []
    regrets = [0.0]
    with policy.pause():  # answers come before the worker has put the model back
        for asked, answer in zip([*first, *second], [*answers, *later], strict=True):
            plain_TV = _plain_logprobs(model, asked.token_ids + answer.token_ids)[len(asked.token_ids) - 1 : -1]
            tokens_T = torch.tensor(answer.token_ids, device=plain_TV.device)
            plain_T = plain_TV.gather(-1, tokens_T[:, None])[:, 0]
            assert answer.raw_logprobs is not None, "this policy states them"
            gaps.append((torch.tensor(answer.raw_logprobs, device=plain_T.device) - plain_T).abs())
            if asked.sampling.temperature == 0:
                regrets.append((plain_TV.amax(dim=-1) - plain_T).max().item())
    checks = [
        Check(f"{label}: sampled tokens, mean gap in nats", torch.cat(gaps).mean().item(), bounds.sampled),
        Check(f"{label}: greedy tokens, regret in nats", max(regrets), bounds.regret),
    ]
    if policy._engine.rows.capacity > len(second):  # every context of the first turn is kept
        share = sum(answer.num_prefilled for answer in later) / sum(len(asked.token_ids) for asked in second)
        checks.append(Check(f"{label}: share of second contexts computed again", share, 0.9 if is_dry else 0.5))
    return checks


def _request(context: tuple[int, ...], *, seed: int, greedy: bool, max_new_tokens: int) -> GenerateRequest:
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_new_tokens=max_new_tokens)
    return GenerateRequest(token_ids=context, sampling=sampling, seed=seed)


def _generate(policy: TransformersPolicy, requests: Sequence[GenerateRequest]) -> list[Generation]:
    async def together() -> list[Generation]:
        return list(await asyncio.gather(*[policy.generate(request) for request in requests]))

    return asyncio.run(together())


@torch.no_grad()
def _plain_logprobs(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Return [T, V]: row t is the distribution of the token after the first t + 1."""
    logits: Tensor = model(input_ids=torch.tensor([list(token_ids)], device=model.device), use_cache=False).logits
    return logits[0].float().log_softmax(-1)
