"""How the cost of a run grows, and where one controller ends: the model of docs/scaling.md, fitted and tried.

Run: python -m benchmarks.scaling [--rounds 3] [--turns 4096]. Prints one JSON line.

Turns: a policy server that answers at once and an environment server that echoes, each in a process of its own, serve
the whole loop of this process: what is left is the control plane. Processor time counts, which other load disturbs
less than wall time. Two lines are fitted, of this process and of each server: microseconds of a turn over its context
in tokens. The largest cell is left out of the fit and predicted. Then one thing varies at a time: episodes at a time,
policy servers, branches of a tree.

Weights: seconds from new weights to sampling again, over their size and the number of servers, by files.

Learning: processor seconds of a token, forward and backward pass, over the parameters that it meets.
"""

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import envgym
from benchmarks._options import print_result, read_options
from benchmarks.env_server import served
from benchmarks.policy_server import OtherProcess, of_size, processor_s, update_seconds
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.weights.transport import FileTransport
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation, Sampling
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.search import Chain, RolloutContext, Strategy, SurprisalFork
from envgym.core.tasks import Split
from envgym.runtime.garbage import rare_collections
from tests.support.parrots import END, char_agent, episode_factory

ECHO: Final = "benchmarks.env_server:Echo"
TOKENS: Final = 64
"""Of a turn; the echo shows them again."""
SIZES: Final = ((256, 4, 2), (512, 8, 4), (768, 12, 8))
"""Width, attention heads and layers of the models that learn."""


class Cell(NamedTuple):
    """What is under way at a time."""

    episodes: int = 256
    turns: int = 8
    servers: int = 1
    """Policy servers."""
    branches: int = 0
    """Of each of two nodes of a tree; 0: chains."""


class Cost(NamedTuple):
    """What a turn took, in microseconds of processor time."""

    context: float
    """Tokens that a request holds, on average."""
    controller: float
    policy_server: float
    env_server: float


class Talker(TransformersPolicy):
    """Says as many letters as a turn has, at once."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return letters of random probabilities, then the end of the turn."""
        count = min(TOKENS, request.sampling.max_new_tokens)
        draws = np.random.default_rng(request.seed)
        logprobs = tuple((-draws.exponential(size=count)).tolist())
        return Generation(
            token_ids=(*(97 + draws.integers(26, size=count - 1)).tolist(), END),
            behavior_logprobs=logprobs,
            raw_logprobs=logprobs,
            finish_reason=FinishReason.STOP,
            policy_version=self.version,
        )


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """Serve the echo; yields its address and process id."""
    options = ("--port", "0", "--sessions", "8192", "--client-setting", "max_turns")
    with served("-m", "envgym", "serve", ECHO, *options) as server:
        yield server.url, server.pid


async def grow(strategy: Strategy, cell: Cell, url: str, policy: ServedPolicy) -> tuple[int, int]:
    """Play a cell once; returns turns, as many as the sampled tokens make, and tokens of their contexts."""
    make_env = partial(envgym.make, url, max_turns=cell.turns)
    task = make_env().unwrapped.tasks.task(Split.TRAIN, 0)
    context = RolloutContext(
        agent=char_agent(max_turn_tokens=TOKENS),
        policy=policy,
        sampling=Sampling(),
        slots=asyncio.Semaphore(cell.episodes),
    )
    jobs = [
        EpisodeJob(make_env=make_env, task=task, seed=number, tree_id=f"t{number}", env_id="echo")
        for number in range(cell.episodes)
    ]
    trees = await asyncio.gather(
        *[strategy.grow_tree(episode_factory(job)(0), context, group_size=1 + 2 * cell.branches) for job in jobs]
    )
    costs = [tree.cost for tree in trees]
    turns = sum(cost.tokens_generated for cost in costs) // TOKENS
    return turns, turns * (cell.turns - 1) * (2 * TOKENS) // 2


def measure_cell(cell: Cell, env_url: str, env_pid: int, num_turns: int) -> Cost:
    strategy = SurprisalFork(trees=1, nodes=2, branches=cell.branches) if cell.branches else Chain()
    limits = ClientLimits(max_concurrency=max(64, cell.episodes))
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        servers = [held.enter_context(closing(OtherProcess(None, Talker))) for _ in range(cell.servers)]
        urls, pids = [server.url for server in servers], [server.pid for server in servers]
        policy = held.enter_context(closing(ServedPolicy(urls, transport=FileTransport(folder), limits=limits)))
        asyncio.run(grow(strategy, cell._replace(episodes=8), env_url, policy))
        held.enter_context(rare_collections())  # as a run collects its episodes
        gc.collect()
        before = time.process_time(), processor_s(pids), processor_s([env_pid])
        turns = tokens = 0
        while turns < num_turns:
            more, of_contexts = asyncio.run(grow(strategy, cell, env_url, policy))
            turns, tokens = turns + more, tokens + of_contexts
        after = time.process_time(), processor_s(pids), processor_s([env_pid])
    return Cost(tokens / turns, *(1e6 * (late - early) / turns for early, late in zip(before, after, strict=True)))


def median_cost(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def fit(places: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the coefficients, the constant first, of the plane through the values (least squares)."""
    design = np.column_stack([np.ones(len(values)), np.asarray(places)])
    return [float(value) for value in np.linalg.lstsq(design, np.asarray(values), rcond=None)[0]]


def measure_turns(rounds: int, num_turns: int) -> dict[str, object]:
    """Return the lines of a turn's cost, how well they predict, and what does not change it."""
    lengths = [Cell(episodes=64, turns=turns) for turns in (4, 16, 32, 64)]
    others = [Cell(episodes=64), Cell(), Cell(episodes=1024), Cell(servers=4), Cell(branches=2)]
    costs = dict[Cell, list[Cost]]()
    with echo() as (url, pid):
        for _ in range(rounds):
            for cell in (*lengths, *others):
                costs.setdefault(cell, []).append(measure_cell(cell, url, pid, num_turns))
    found = {cell: median_cost(of_cell) for cell, of_cell in costs.items()}
    told: dict[str, object] = {}
    *fitted, held = [found[cell] for cell in lengths]
    for place in (1, 2, 3):
        constant, slope = fit([[cost.context] for cost in fitted], [cost[place] for cost in fitted])
        predicted = constant + slope * held.context
        line = {"us": round(constant, 1), "us_per_1000_tokens": round(1e3 * slope, 1)}
        told[Cost._fields[place]] = line | {"held_out_over_predicted": round(held[place] / predicted, 3)}
    cells = [
        {**cell._asdict(), **{name: round(value, 1) for name, value in cost._asdict().items()}}
        for cell, cost in found.items()
    ]
    return {**told, "cells": cells}


def measure_update(gigabytes: float, servers: int, rounds: int) -> tuple[float, float]:
    """Return the size of the weights in GB, and the seconds of an update by files, the median."""
    model = of_size(gigabytes)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e9
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        others = [held.enter_context(closing(OtherProcess(gigabytes))) for _ in range(servers)]
        urls = [other.url for other in others]
        policy = held.enter_context(closing(ServedPolicy(urls, transport=FileTransport(folder))))
        return size, statistics.median(update_seconds(policy, model, rounds)[1:])


def measure_updates(rounds: int) -> dict[str, object]:
    """Return the seconds of an update: a constant, per GB, and per GB of each server."""
    cells = [(0.1, 1), (0.3, 1), (0.6, 1), (0.3, 2), (0.3, 4)]
    found = [measure_update(gigabytes, servers, rounds) for gigabytes, servers in cells]
    places = [[size, size * servers] for (size, _), (_, servers) in zip(found, cells, strict=True)]
    constant, per_gb, per_server = fit(places, [seconds for _, seconds in found])
    told = [
        {"gb": round(size, 3), "servers": servers, "s": round(s, 3)}
        for (size, s), (_, servers) in zip(found, cells, strict=True)
    ]
    line = {"s": constant, "s_per_gb": per_gb, "s_per_gb_and_server": per_server}
    return {name: round(value, 3) for name, value in line.items()} | {"cells": told}


def learn_seconds(width: int, heads: int, layers: int, rounds: int) -> tuple[int, float]:
    """Return the parameters of a model but for its embedding, and the processor seconds of a token that it learns."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": heads}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=layers, **sizes))
    tokens, seconds = torch.randint(256, (4, 128)), list[float]()
    for _ in range(rounds + 1):
        began = time.process_time()
        model(input_ids=tokens, labels=tokens).loss.backward()
        seconds.append(time.process_time() - began)
    met = sum(weight.numel() for weight in model.model.layers.parameters())
    return met, statistics.median(seconds[1:]) / tokens.numel()


def measure_learning(rounds: int) -> dict[str, object]:
    """Return the processor seconds of a token per 10^9 operations (6 per parameter), which a line through 0 fits."""
    found = [learn_seconds(*size, rounds) for size in SIZES]
    cells = [
        {"parameters": met, "us_per_token": round(1e6 * s, 1), "gflops": round(6 * met / s / 1e9, 1)}
        for met, s in found
    ]
    return {"cells": cells}


def main() -> None:
    options = read_options(__doc__, rounds=3, turns=4096)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print_result(
        "scaling",
        turns=measure_turns(options.rounds, options.turns),
        updates=measure_updates(options.rounds),
        learning=measure_learning(options.rounds),
        load_before=round(load, 1),
    )


if __name__ == "__main__":
    main()
