"""Learner ranks: balance of search trees over them, and with `--steps N` a train step of two against one.

Run: python -m benchmarks.ranks [--groups 16] [--ranks 8] [--seeds 20] [--steps 3]. Prints one JSON line.

Balance: the slowest rank over the ideal, of both plans. Steps: a llama of 12 million random weights on 4 groups, with a
quarter of the tokens.
One process computes with one thread and with two, two ranks with one each; medians, the sides in turns.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from benchmarks._options import print_result, read_options
from envgym.runtime.processes.group import Processes
from envgym.runtime.processes.process import ProcessSpec
from envgym.trainer.batch.balance import Shares, TokenCost, balance_rows, cut_shares, group_shares

COST = TokenCost(base=6 * 1_543_714_304, pair=12 * 28 * 1536)
"""Of a model of 1.5B parameters, 28 layers, width 1536."""
_GROUPS_OF_STEP: Final = 4


def tree_rows(rng: random.Random, num_groups: int, *, scale: float = 1.0) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the rows of trees of very different sizes, and the group of each.

    A group has a prompt of 200 to 600 tokens and 4 turns of 20 to 400, of which every one branches in two or three with
    probability 0.4, and 4 to 8 samples of its first turn; all lengths are times `scale`.
    """
    rows: list[tuple[int, ...]] = []
    groups: list[int] = []

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(50_000) for _ in range(round(scale * rng.randint(low, high))))

    def grow(path: tuple[int, ...], turns: int, group: int) -> None:
        if not turns:
            rows.append(path)
            groups.append(group)
            return
        for _ in range(rng.choice((2, 3)) if rng.random() < 0.4 else 1):
            grow((*path, *tokens(20, 400)), turns - 1, group)

    for group in range(num_groups):
        prompt = tokens(200, 600)
        for _ in range(rng.randint(4, 8)):
            grow(prompt, 4, group)
    return rows, groups


def flat_shares(rows: Sequence[tuple[int, ...]], groups: Sequence[int], num_ranks: int) -> float:
    """Return the slowest rank's cost where rows are dealt one by one, as if they shared nothing."""
    dealt = balance_rows(rows, groups, range(len(rows)), num_ranks, COST, packed=False)
    return max(cut_shares(rows, of_rank, 1, COST).slowest for of_rank in dealt.rows)


def step_seconds(num_ranks: int, threads: int, num_steps: int) -> list[float]:
    """Return the seconds of train steps of a learner of several ranks, after one that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "seconds.json")
        command = [sys.executable, "-m", "benchmarks.ranks", "--steps", str(num_steps), "--threads", str(threads)]
        command += ["--of", str(num_ranks), "--out", str(file), "--meeting", f"{folder}/meeting", "--rank"]
        with Processes(Path(folder), run="ranks", resume="none") as processes:
            ranks = (ProcessSpec(f"rank-{n}", (*command, str(n)), serves=False) for n in range(num_ranks))
            processes.start(ranks)
            while not file.exists():
                time.sleep(0.1)
        seconds: list[float] = json.loads(file.read_text())
        return seconds


def run_rank(args: argparse.Namespace) -> None:
    """Make the train steps of one rank; rank 0 writes how long each took."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from envgym.runs.files import write_json
    from envgym.trainer.batch.rows import TrainRow
    from envgym.trainer.learner.learner import Learner
    from envgym.trainer.learner.objective import Objective
    from envgym.trainer.learner.processes import ONE_PROCESS
    from envgym.trainer.learner.ranks.group import RankGroup
    from envgym.trainer.learner.ranks.meeting import Meeting
    from envgym.trainer.learner.ranks.sharded import RankedProcesses
    from envgym.trainer.learner.settings import ObjectiveSettings, OptimSettings
    from envgym.trainer.methods.corrections import NoCorrection
    from envgym.trainer.methods.losses import PpoClip
    from envgym.trainer.methods.row_ids import RowId

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    config = LlamaConfig(vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=4)
    model: Any = LlamaForCausalLM(config)
    group = RankGroup(cpu, Meeting.at_file(args.rank, args.of, args.meeting)) if args.of > 1 else None
    processes = ONE_PROCESS if group is None else RankedProcesses(group)
    optim = OptimSettings(micro_batch_tokens=8192)
    learner = Learner(model, optim=optim, num_steps=100, device=cpu, processes=processes)
    ids, groups = tree_rows(random.Random(0), _GROUPS_OF_STEP, scale=0.25)
    rows = [
        TrainRow(
            token_ids=tuple(token % config.vocab_size for token in row),
            loss_mask=tuple(place >= len(row) // 2 for place in range(len(row))),
            advantages=tuple(1.0 * (place >= len(row) // 2) for place in range(len(row))),
            behavior_logprobs=(0.0,) * len(row),
            weights=(1.0,) * len(row),
            id=RowId(group=of_group),
        )
        for row, of_group in zip(ids, groups, strict=True)
    ]
    goal = Objective(loss=PpoClip(), correction=NoCorrection(), settings=ObjectiveSettings(), temperature=1.0)
    seconds = []
    for step in range(args.steps + 1):
        started = time.perf_counter()
        learner.train_step(rows, goal, step=step)
        seconds.append(time.perf_counter() - started)
    if not args.rank:
        write_json(Path(args.out), seconds[1:])
    if group is not None:
        group.close()


def measure_steps(num_steps: int) -> dict[str, object]:
    """Return the seconds of a train step of each side, and how much faster two ranks are than one thread."""
    sides = {
        "one process, one thread": (1, 1),
        "one process, two threads": (1, 2),
        "two ranks, one thread each": (2, 1),
    }
    found = {name: median(step_seconds(*side, num_steps)) for name, side in sides.items()}
    alone, threads, ranks = found.values()
    return {
        "step_seconds": {name: round(value, 3) for name, value in found.items()},
        "two_ranks_over_one_thread": round(alone / ranks, 3),
        "two_ranks_over_two_threads": round(threads / ranks, 3),
    }


def main() -> None:
    args = read_options(
        __doc__, steps=0, groups=16, ranks=8, seeds=20, rank=-1, of=1, threads=1, out="", meeting=""
    )  # from `rank` on of a process that this starts
    if args.rank >= 0:
        run_rank(args)
        return
    found: dict[str, list[float]] = {name: [] for name in ("rows", "groups", "cut", "better")}
    for seed in range(args.seeds):
        rows, groups = tree_rows(random.Random(seed), args.groups)
        everything = range(len(rows))
        ideal = cut_shares(rows, everything, 1, COST).slowest / args.ranks
        plans: dict[str, Shares] = {
            "groups": group_shares(rows, groups, everything, args.ranks, COST),
            "cut": cut_shares(rows, everything, args.ranks, COST),
            "better": balance_rows(rows, groups, everything, args.ranks, COST),
        }
        found["rows"].append(flat_shares(rows, groups, args.ranks) / ideal)
        for name, shares in plans.items():
            found[name].append(shares.slowest / ideal)
    report = {name: {"mean": round(mean(values), 3), "max": round(max(values), 3)} for name, values in found.items()}
    steps = measure_steps(args.steps) if args.steps else {}
    print_result("ranks", groups=args.groups, ranks=args.ranks, seeds=args.seeds, slowest_over_ideal=report, **steps)


if __name__ == "__main__":
    main()
