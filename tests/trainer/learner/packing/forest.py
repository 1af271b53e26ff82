"""Random groups of search trees, and tiny models exact in float64, to compare packed with padded rows."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from envgym.core.builder import TreeBuilder
from envgym.core.trajectory import Group
from envgym.core.turns import Ending
from envgym.trainer.batch.packs import Pack, build_pack
from envgym.trainer.batch.rows import MicroBatch, TrainRow, packed_batches
from envgym.trainer.learner.logprobs import TokenLogprobs
from envgym.trainer.learner.packing.support import can_pack
from tests.support.example_trees import TASK, paid, policy, prompt, tool, turn
from tests.support.logprobs import packed_logprobs, token_logprobs

CPU = torch.device("cpu")
VOCABULARY = 29
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def kept_packs(monkeypatch: pytest.MonkeyPatch) -> list[Pack]:
    """Return the list to which every pack of rows is added from now on."""
    built: list[Pack] = []

    def kept(*given: Any, **named: Any) -> Pack:
        built.append(build_pack(*given, **named))
        return built[-1]

    monkeypatch.setattr("envgym.trainer.batch.rows.build_pack", kept)
    return built


def build(family: str = "llama", *, dtype: torch.dtype = torch.float64, **config: object) -> PreTrainedModel:
    """Return a tiny model without any step in a lower precision than `dtype`."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **config}))
    assert isinstance(model, PreTrainedModel)
    for part in list(model.modules()):
        for name, norm in part.named_children():
            if type(norm).__name__.endswith("RMSNorm"):  # computes in float32 whatever it is given
                setattr(part, name, nn.RMSNorm(_width(norm), eps=1e-6))
    nn.Module.to(model, dtype)
    model.eval()
    return model


def _width(norm: nn.Module) -> int:
    weight = norm.weight
    assert isinstance(weight, Tensor)
    return len(weight)


def group(rng: random.Random, *, name: str = "g", num_trees: int = 2) -> Group:
    """Grow trees of one prompt: turns of a few tokens, most of which branch; siblings may begin alike."""
    start = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))]
    trees = []
    for number in range(num_trees):
        tree = TreeBuilder(id=f"{name}/{number}", env_id="test/env-v0", task=TASK, seed=number, prompt=[prompt(*start)])
        _grow(tree, tree.root, rng, depth=rng.randint(1, 3))
        trees.append(tree.freeze())
    return Group(key=name, trees=tuple(trees))


def _grow(tree: TreeBuilder, node: int, rng: random.Random, depth: int) -> None:
    for _ in range(rng.randint(1, 3)):
        said = policy(*[rng.randrange(4) for _ in range(rng.randint(1, 5))])
        reward = paid(float(rng.randint(0, 3)), text=str(said.token_ids))
        if depth == 1:
            tree.add(node, turn(said), outcome=reward, ending=Ending.TERMINATED)
        else:
            seen = tool(*[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 3))])
            _grow(tree, tree.add(node, turn(said, seen), outcome=reward), rng, depth - 1)


def random_rows(rng: random.Random, count: int = 8) -> list[TrainRow]:
    """Return rows that go on from random places of each other, each with its own mask."""
    rows = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12))]]
    while len(rows) < count:
        parent = rng.choice(rows)
        cut = rng.randint(0, len(parent))
        rows.append([*parent[:cut], *[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 8))]])
    return [
        TrainRow(
            token_ids=tuple(ids),
            loss_mask=(False, *[rng.random() < 0.7 for _ in ids[1:]]),
            advantages=tuple(rng.uniform(-2, 2) for _ in ids),
            behavior_logprobs=(-1.0,) * len(ids),
            weights=(1.0,) * len(ids),
        )
        for ids in rows
    ]


class Pair(NamedTuple):
    batch: MicroBatch
    packed: TokenLogprobs
    padded: TokenLogprobs


def both(model: nn.Module, rows: Sequence[TrainRow], *, max_tokens: int = 10_000) -> Iterator[Pair]:
    assert can_pack(model)
    for batch in packed_batches(rows, range(len(rows)), max_tokens, CPU):
        assert batch.pack is not None
        mask_BT = batch.loss_mask_BT
        padded = token_logprobs(
            model,
            input_ids_BT=batch.input_ids_BT,
            attention_mask_BT=batch.attention_mask_BT,
            loss_mask_BT=mask_BT,
            temperature=0.7,
            with_entropy=True,
            states_before=mask_BT,
        )
        packed = packed_logprobs(
            model, batch.pack, loss_mask_BT=mask_BT, temperature=0.7, with_entropy=True, states_before=mask_BT
        )
        yield Pair(batch, packed, padded)


def gradients(model: nn.Module, scalar: Tensor) -> Tensor:
    """Return the gradient by all trainable weights as one vector; the graph stays."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = torch.autograd.grad(scalar, weights, retain_graph=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Assert a difference of at most `tolerance` of the largest number, or of 1."""
    scale = max(expected.abs().max().item(), 1.0) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)
