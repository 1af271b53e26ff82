"""A train step with compiled against plain decoder layers, step by step in turns in one process.

Run: python -m benchmarks.compiled_layers [--cells G8-P64 ...] [--dtype bfloat16] [--repeats 5]. Prints one JSON line:
for each cell of `benchmarks/packing.py` the median seconds of a step of both sides, their ratio, and the seconds of the
first step, which compiles what no earlier run has left in torch's cache.
"""

import argparse
import json
import statistics
from typing import Any

import torch

from benchmarks.packing import as_train_rows, rows_of, timed
from envgym.agents.models.loading import load
from envgym.trainer.learner.allocator import freed_memory_kept
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import PpoClip
from envgym.trainer.sections import ObjectiveSettings, OptimSettings

SIDES = {"plain": False, "compiled": True}


def learner_of(options: argparse.Namespace, *, compiles: bool) -> Learner:
    """Load a model and return its learner."""
    model = load(options.model, dtype=options.dtype, trainable=True).model
    optim = OptimSettings(lr=1e-6, micro_batch_tokens=8192, compile_layers=compiles)
    return Learner(model, optim=optim, num_steps=1000, device=torch.device("cpu"))


def measure(cell: str, learners: dict[str, Learner], repeats: int) -> dict[str, Any]:
    """Train on a cell's rows in turns."""
    objective = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
    model: Any = learners["plain"].model
    rows = as_train_rows(rows_of(cell, model.config.vocab_size))

    def step(side: str) -> float:
        def work() -> None:
            with freed_memory_kept():
                learners[side].train_step(rows, objective, step=0)

        return timed(work)

    first = {side: step(side) for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side in SIDES:
            seconds[side].append(step(side))
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    return {**medians, "ratio": medians["plain"] / medians["compiled"], "first_s": first["compiled"]}


def main() -> None:
    """Measure the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["flat", "D3", "G8-P64", "G4-P512"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    learners = {side: learner_of(options, compiles=compiles) for side, compiles in SIDES.items()}
    cells = {cell: measure(cell, learners, options.repeats) for cell in options.cells}
    print(json.dumps({"benchmark": "compiled_layers", "model": options.model, "dtype": options.dtype, "cells": cells}))


if __name__ == "__main__":
    main()
