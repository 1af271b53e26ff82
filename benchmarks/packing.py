"""A training step on packed against padded rows, and both against the arithmetic that they need.

Run: python -m benchmarks.packing [--model smollm2] [--cells G8-P512 D3 ...] [--repeats 3] [--seconds 0].
Prints one JSON line. A cell ends after `--repeats` rounds, or after that at which its share of `--seconds` is used.
Cells: G rows on a prompt of P tokens, full binary trees of depth D, and rows that share nothing. Both sides train on
the same rows in processes of their own, because a process keeps its peak; after one step to warm up they alternate,
step by step. Padded is a fair opponent: length buckets, and the head on trained tokens only. `speedup` is the median
over rounds, and `achieved` is the speed-up divided by the ratio of the FLOPs counted.

`--sides compiled packed` compares compiled with plain decoder layers, both packed. `first_s` is then the step that
compiles what no earlier run has left in torch's cache.
"""

import argparse
import math
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._options import print_result, read_options

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from envgym.trainer.batch.rows import TrainRow

RESPONSE = 96
"""Tokens that each row samples after the prompt."""
SIDES: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"packing": False},
    "compiled": {"compile_layers": True},
}
"""What is compared: settings of `optim`."""
CELLS = [*[f"G{size}-P{prompt}" for prompt in (64, 512, 2048) for size in (4, 8, 16)], "D3", "D6", "flat"]
TRUNK, TURN = 128, 32
"""Tokens of a tree's prompt, and of each of its turns; those of a flat row's prompt, too."""


class Side(NamedTuple):
    """What one process measured."""

    seconds: float
    """Median of a train step: preparation, forward, backward, update."""
    first_s: float
    """The step before those."""
    steps_s: list[float]
    """All of them, in the order of the rounds."""
    preparation_s: float
    """Of these: merging rows and making masks."""
    peak_mib: float
    """Most resident memory."""
    gflops: float
    """Multiplications and additions of forward and backward, for tokens and pairs of tokens that count."""
    tokens: int
    grad_norm: float
    """Of the first step: that of the other side, but for rounding."""


def rows_of(cell: str, vocabulary: int, seed: int = 0) -> list[tuple[list[int], int]]:
    """Return rows, each with the number of its tokens that do not train."""
    rng = random.Random(seed)

    def draw(length: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(length)]

    if cell == "flat":
        return [(draw(TRUNK + RESPONSE), TRUNK) for _ in range(8)]
    if cell.startswith("D"):
        paths = [draw(TRUNK)]
        for _ in range(int(cell[1:])):
            paths = [[*path, *draw(TURN)] for path in paths for _ in range(2)]
        return [(path, TRUNK) for path in paths]
    size, length = (int(part[1:]) for part in cell.split("-"))
    prompt = draw(length)
    return [([*prompt, *draw(RESPONSE)], length) for _ in range(size)]


def as_train_rows(rows: Sequence[tuple[list[int], int]]) -> "list[TrainRow]":
    """Return rows as the learner reads them, of advantages -1 and 1 in turn; each comes with its untrained tokens."""
    from envgym.trainer.batch.rows import TrainRow

    return [
        TrainRow(
            token_ids=tuple(ids),
            loss_mask=tuple(position >= fixed for position in range(len(ids))),
            advantages=(1.0 if number % 2 else -1.0,) * len(ids),
            behavior_logprobs=(0.0,) * len(ids),
            weights=(1.0,) * len(ids),
        )
        for number, (ids, fixed) in enumerate(rows)
    ]


def gflops(model: Any, batches: Any) -> float:  # a transformers model; MicroBatches
    """Count layers 3 times, attention 3.5 times (its backward makes the scores again), the head 4 times (likewise)."""
    config = model.config
    body = sum(weight.numel() for name, weight in model.named_parameters() if ".layers." in name and weight.ndim == 2)
    pair = 2 * 2 * config.hidden_size * config.num_hidden_layers  # the score, and its part of the weighted sum
    head = 2 * config.hidden_size * config.vocab_size
    total = 0.0
    for batch in batches:
        present_BT = batch.attention_mask_BT
        depths = present_BT.cumsum(1)[present_BT] - 1 if batch.pack is None else batch.pack.depths_N
        trained = int(batch.loss_mask_BT.sum()) if batch.pack is None else len(batch.pack.trained_S)
        total += 3 * 2 * body * len(depths) + 3.5 * pair * int((depths + 1).sum()) + 4 * head * trained
    return total / 1e9


def measure(cell: str, name: str, options: argparse.Namespace, turns: "Connection") -> None:
    """Load the model and train on a cell's rows, first once to warm up; say so, then do a step for every True.

    The answer to False is the `Side`.
    """
    import torch

    from envgym.agents.models.loading import load
    from envgym.trainer.learner.allocator import freed_memory_kept
    from envgym.trainer.learner.learner import Learner
    from envgym.trainer.learner.objective import Objective
    from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
    from envgym.trainer.methods.corrections import NoCorrection
    from envgym.trainer.methods.losses import PpoClip

    torch.set_num_threads(options.threads)
    model = load(options.model, dtype=options.dtype, trainable=True).model
    rows = as_train_rows(rows_of(cell, model.config.vocab_size))
    optim = OptimSettings(lr=1e-6, micro_batch_tokens=options.micro_batch_tokens, **SIDES[name])
    learner = Learner(model, optim=optim, num_steps=options.repeats + 1, device=torch.device("cpu"))
    objective = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)

    norms: list[float] = []

    def train() -> None:
        with freed_memory_kept():  # as training does; what is kept goes back, for the other side's step
            norms.append(learner.train_step(rows, objective, step=len(norms))["optim/grad_norm"])

    first_s = timed(train)
    turns.send(None)
    seconds = []
    while turns.recv():
        seconds.append(timed(train))
        turns.send(None)
    batches = learner.micro_batches(rows, range(len(rows)))
    side = Side(
        seconds=statistics.median(seconds),
        first_s=first_s,
        steps_s=seconds,
        preparation_s=timed(lambda: prepare(rows, options.micro_batch_tokens)) if optim.packing else 0.0,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024),
        gflops=gflops(model, batches),
        tokens=sum(batch.num_tokens for batch in batches),
        grad_norm=norms[0],
    )
    turns.send(side)


def alternate(cell: str, options: argparse.Namespace, seconds: float) -> list[Side]:
    """Let the sides take turns, for a wall time after which one more round ends."""
    deadline = time.monotonic() + seconds
    processes = multiprocessing.get_context("spawn")
    turns: list[Connection] = []
    for name in options.sides:
        ours, theirs = processes.Pipe()
        processes.Process(target=measure, args=(cell, name, options, theirs), daemon=True).start()
        theirs.close()  # so that the end of the process ends the wait below
        ours.recv()
        turns.append(ours)
    for done in range(options.repeats):
        if done and time.monotonic() > deadline:
            break
        for turn in turns:
            turn.send(True)
            turn.recv()
    for turn in turns:
        turn.send(False)
    return [turn.recv() for turn in turns]


def prepare(rows: Any, max_tokens: int) -> None:  # TrainRows
    """Do what packing adds to a step: tries, packs and masks."""
    import torch

    from envgym.trainer.batch.packs import build_pack, build_trie, cut
    from envgym.trainer.learner.packing.attention import TreeMask

    token_ids, loss_masks = [row.token_ids for row in rows], [row.loss_mask for row in rows]
    trie = build_trie(token_ids, range(len(rows)))
    for run in cut(trie, max_tokens):
        pack = build_pack(token_ids, loss_masks, trie, run, torch.device("cpu"))
        assert TreeMask(pack.ends_N, pack.depths_N, lambda batch, head, query, key: key <= query).parts


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(packed: Side, padded: Side) -> dict[str, float]:
    speedup = statistics.median(slow / fast for slow, fast in zip(padded.steps_s, packed.steps_s, strict=True))
    ratio = padded.gflops / packed.gflops
    return {
        "speedup": round(speedup, 3),
        "flop_ratio": round(ratio, 3),
        "achieved": round(speedup / ratio, 3),
        "preparation_share": round(packed.preparation_s / packed.seconds, 5),
        "grad_norm_gap": abs(packed.grad_norm / padded.grad_norm - 1),
    }


def main() -> None:
    options = read_options(
        __doc__,
        model="smollm2",
        cells=tuple(CELLS),
        sides=("packed", "padded"),
        dtype="float32",
        repeats=3,
        seconds=0,
        threads=2,
        micro_batch_tokens=8192,
    )
    share = options.seconds / len(options.cells) or math.inf
    results: dict[str, object] = {}
    for cell in options.cells:
        sides = alternate(cell, options, share)
        named = {name: side._asdict() for name, side in zip(options.sides, sides, strict=True)}
        results[cell] = {**compare(*sides), **named}
        print(f"{cell}: {results[cell]}", file=sys.stderr)
    settings = {"model": options.model, "threads": options.threads, "micro_batch_tokens": options.micro_batch_tokens}
    print_result("packing", **settings, cells=results)


if __name__ == "__main__":
    main()
