"""Terms of an objective that are not used: a train step with them over one without, on one model and the same rows.

Run: python benchmarks/objective_terms.py [--tasks 4] [--group-size 4] [--tokens 128] [--repeats 15].
Prints one JSON line. `plain_ms` is the median processor time of a train step with the policy's loss alone. Beside it
stand `unused`, with five terms whose coefficient is 0 (one of them reads hidden states, three couple rows, and the KL
term and the entropy bonus are among them), and `used`, with the one that reads hidden states: each as a ratio to it.
`computed_tokens` are those that went through the model. The three take turns, so that what else runs slows all alike.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from envgym.core.trajectory import Row
from envgym.plugins import Choice
from envgym.trainer.batch.rows import TrainRow, train_row
from envgym.trainer.catalog import LOSS
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import NOTHING, Objective, Term
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.methods.row_ids import RowId
from envgym.trainer.sections import ObjectiveSettings, OptimSettings

VOCABULARY = 512
UNUSED = ("contrastive", "siren", "real", "nll", "cispo")


def make_rows(num_tasks: int, group_size: int, num_tokens: int) -> list[TrainRow]:
    """Return rows of one turn, half of it prompt; each tree keeps its first context in other words."""
    rng = random.Random(0)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(count))

    rows: list[TrainRow] = []
    half = num_tokens // 2
    for task in range(num_tasks):
        prompt, reworded = draw(half), {"reworded": draw(half)}
        for _ in range(group_size):
            row = Row(
                tree_id=str(len(rows)),
                leaf=1,
                rewrite=None,
                segments=(),
                token_ids=prompt + draw(half),
                loss_mask=(False,) * half + (True,) * half,
                behavior_logprobs=(0.0,) * half + (-6.0,) * half,
                nodes=(0,) * half + (1,) * half,
                turns=(-1,) * half + (0,) * half,
            )
            number, reward = len(rows), float(rng.random() < 0.5)
            row_id = RowId(episode=number, tree=number, group=task, task=task, reward=reward, row=row, prompts=reworded)
            rows.append(replace(train_row(row, [rng.uniform(-1, 1)] * len(row)), id=row_id))
    return rows


class Variant:
    """A learner with an objective, its times and the tokens that its model computes in a step."""

    def __init__(self, *further: Term) -> None:
        """Build a model of its own, equal to the others."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=1024,
        )
        self.objective = Objective(
            loss=PpoClip(),
            correction=NoCorrection(),
            settings=ObjectiveSettings(kl_coef=0.0, entropy_coef=0.0),
            temperature=1.0,
            further=further,
        )
        model = LlamaForCausalLM(config)
        self.learner = Learner(model, optim=OptimSettings(), num_steps=1000, device=torch.device("cpu"))
        self.milliseconds: list[float] = []
        self.computed_tokens = 0
        model.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        del model, args
        self.computed_tokens += inputs["input_ids"].numel()

    def run(self, rows: Sequence[TrainRow]) -> None:
        """Run one train step."""
        self.computed_tokens = 0
        started = time.process_time()
        self.learner.train_step(rows, self.objective, step=len(self.milliseconds))
        self.milliseconds.append(1000 * (time.process_time() - started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = make_rows(options.tasks, options.group_size, options.tokens)
    terms = {name: Term(name=name, loss=LOSS.build(Choice(name=name)), coef=NOTHING) for name in UNUSED}
    used = Term(name="contrastive", loss=terms["contrastive"].loss)
    variants = {"plain": Variant(), "unused": Variant(*terms.values()), "used": Variant(used)}
    for _ in range(options.repeats + 1):
        for variant in variants.values():
            variant.run(rows)
    times = {name: statistics.median(variant.milliseconds[1:]) for name, variant in variants.items()}
    line = {
        "benchmark": "objective_terms",
        "rows": len(rows),
        "tokens": options.tokens,
        "plain_ms": round(times["plain"], 1),
        "unused": round(times["unused"] / times["plain"], 3),
        "used": round(times["used"] / times["plain"], 3),
        "computed_tokens": {name: variant.computed_tokens for name, variant in variants.items()},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
