"""What a policy server costs beside a policy in this process: per turn, and per weight update.

Run: python -m benchmarks.policy_server [--episodes 256] [--turns 8] [--repeats 3] [--gb 0.3]. Prints one JSON line.

Turns: the policy answers at once with made-up tokens, so what is left is the control plane. All episodes are under way
at a time, and each waits for a turn before it asks for the next, whose context is longer. The policy is asked in this
process and through a server in another one on loopback, in alternation, and the medians are compared. `json` are the
same turns by vLLM's route, with whole contexts; `own` and `server` are processor time of the two processes.

Updates: the weights of a llama of random numbers go to the transformers server by each way of transport that the device
has; then adapters of rank 16 on all of its linear layers go by files to a server that has the base. `write` is the
learner's part before the update (digests; files, or a copy), `still` the time from the request to pause until sampling
goes on, with its phases.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks._options import print_result, read_options
from envgym.agents.models.weights import merged_weights
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.serving.client import ClientLimits, ServedPolicy
from envgym.agents.policies.serving.link import ServerLink
from envgym.agents.policies.serving.server import PolicyServer
from envgym.agents.policies.weights.channel import transports_of
from envgym.agents.policies.weights.transport import (
    FileTransport,
    GroupTransport,
    SharedTransport,
    WeightTransport,
)
from envgym.agents.protocols import EarlierTurn, FinishReason, GenerateRequest, Generation, Policy, Sampling

TOKENS: Final = 64
"""Of a turn."""
PROMPT: Final = 256
OBSERVATION: Final = 32
RANK: Final = 16
"""Of the adapters in the updates of a model with LoRA."""


class InstantPolicy(TransformersPolicy):
    """Answers at once."""

    async def generate(self, request: GenerateRequest) -> Generation:
        logprobs = tuple(-1 / (3 + place) for place in range(TOKENS))
        return Generation(
            token_ids=tuple(range(TOKENS)),
            behavior_logprobs=logprobs,
            raw_logprobs=logprobs,
            finish_reason=FinishReason.LENGTH,
            policy_version=self.version,
        )


def small() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=1000, max_position_embeddings=1 << 16, **sizes))


def of_size(gigabytes: float) -> LlamaForCausalLM:
    """Return a llama whose float32 weights take about so many 10^9 bytes."""
    torch.manual_seed(0)
    hidden = 1024
    layer = 4 * hidden * hidden + 3 * hidden * 4 * hidden
    count = max(1, round((gigabytes * 1e9 / 4 - 8000 * hidden) / layer))
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": count}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8000, num_attention_heads=8, tie_word_embeddings=True, **sizes))


def serve(to: Connection, gigabytes: float | None, kind: type[TransformersPolicy]) -> None:
    """In another process: serve a policy of a kind with a small model, or with one of a size, until told to end."""
    torch.set_num_threads(1)

    async def work() -> None:
        model = small() if gigabytes is None else of_size(gigabytes)
        server = PolicyServer(kind(model, deterministic=False), model, model="benchmark")
        await server.http.listen("127.0.0.1", 0)
        to.send(server.http.url)
        await asyncio.to_thread(to.recv)
        await server.close()

    asyncio.run(work())


class OtherProcess:
    """A server in a process of its own."""

    def __init__(self, gigabytes: float | None, kind: type[TransformersPolicy] = TransformersPolicy) -> None:
        self._here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(there, gigabytes, kind), daemon=True)
        self._process.start()
        self.url: str = self._here.recv()
        self.pid = self._process.pid or 0

    def close(self) -> None:
        self._here.send("end")
        self._process.join(10)


def processor_s(pids: Sequence[int]) -> float:
    """Return the seconds of processor time that processes have taken."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


async def play(policy: Policy, options: argparse.Namespace) -> None:
    """Play all episodes together."""

    async def episode(number: int) -> None:
        context, earlier = (number, *range(PROMPT - 1)), None
        for turn in range(options.turns):
            sampling = Sampling(max_new_tokens=TOKENS)
            request = GenerateRequest(token_ids=context, sampling=sampling, seed=turn, continues=earlier)
            generation = await policy.generate(request)
            whole = context + generation.token_ids + tuple(range(OBSERVATION))
            context, earlier = whole, EarlierTurn(context, generation, whole)

    await asyncio.gather(*[episode(number) for number in range(options.episodes)])


def measure_turns(options: argparse.Namespace) -> dict[str, object]:
    """Return milliseconds of a turn in this process and through HTTP, and microseconds of processor time."""
    other = OtherProcess(None, InstantPolicy)
    limits = ClientLimits(max_concurrency=options.episodes)
    served = ServedPolicy([other.url], transport=FileTransport(Path(tempfile.mkdtemp())), limits=limits)
    link = served._fleet.links[0]
    link.limit = link.limit.__class__(limit=float(options.episodes), ceiling=options.episodes)
    inside = InstantPolicy(small())
    sides: Mapping[str, tuple[Policy, bool]] = {
        "inside": (inside, False),
        "json": (served, False),
        "served": (served, True),
    }
    costs: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    try:
        for _ in range(options.repeats + 1):
            for name, (policy, has_frames) in sides.items():
                link.info = link.info._replace(has_frames=has_frames)
                before = time.perf_counter(), time.process_time(), processor_s([other.pid])
                asyncio.run(play(policy, options))
                after = time.perf_counter(), time.process_time(), processor_s([other.pid])
                wall, own, server = (late - early for early, late in zip(before, after, strict=True))
                costs[name].append((wall, own, server))
    finally:
        served.close()
        other.close()
    num_turns = options.episodes * options.turns
    medians = {
        name: [statistics.median(values) / num_turns for values in zip(*rounds[1:], strict=True)]
        for name, rounds in costs.items()
    }
    wall_ms = {f"{name}_ms": round(1e3 * values[0], 4) for name, values in medians.items()}
    processor_us = {
        name: {"own": round(1e6 * values[1], 1), "server": round(1e6 * values[2], 1)}
        for name, values in medians.items()
    }
    above = medians["served"][0] - medians["inside"][0]
    ratio = medians["json"][1] / medians["served"][1]
    return {
        **wall_ms,
        "above_ms": round(1e3 * above, 4),
        "processor_us": processor_us,
        "json_over_served": round(ratio, 2),
    }


def measure_updates(options: argparse.Namespace) -> dict[str, object]:
    """Return the seconds of an update per GB, by way of transport and phase."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, WeightTransport] = {"files": FileTransport(Path(folder))}
        ways["ipc"] = SharedTransport(device)
        ways |= {name: GroupTransport(name, device=device) for name in transports_of(device) if name not in ways}
        adapters = FileTransport(Path(folder) / "adapters")
        other = OtherProcess(options.gb)
        try:
            found = {name: measure_update(transport, other.url, options) for name, transport in ways.items()}
            return {**found, "files, adapters": measure_update(adapters, other.url, options, rank=RANK)}
        finally:
            other.close()


def update_seconds(served: ServedPolicy, model: nn.Module, repeats: int) -> list[float]:
    """Return the seconds of updates with other weights each: one that warms up, and as many as are counted."""
    totals: list[float] = []
    for version in range(1, repeats + 2):
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.mul_(1.01)
        began = time.perf_counter()
        served.update_weights(merged_weights(model), version)
        totals.append(time.perf_counter() - began)
    return totals


def measure_update(
    transport: WeightTransport, url: str, options: argparse.Namespace, *, rank: int | None = None
) -> dict[str, object]:
    """Return the seconds of an update per GB of the model by one way, by phase; with a rank, of LoRA adapters."""
    model = of_size(options.gb)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e9
    learner: nn.Module = (
        model if rank is None else get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
    )
    phases: dict[str, list[float]] = defaultdict(list)
    ask = ServerLink.ask

    async def timed(link: ServerLink, method: str, path: str, *arguments: Any, **named: Any) -> object:
        began = time.perf_counter()
        value = await ask(link, method, path, *arguments, **named)
        phases[path.partition("?")[0].removeprefix("/")].append(time.perf_counter() - began)
        return value

    served = ServedPolicy([url], transport=transport)
    ServerLink.ask = timed  # type: ignore[method-assign, assignment]  # for as long as this measures
    try:
        totals = update_seconds(served, learner, options.repeats)
    finally:
        ServerLink.ask = ask  # type: ignore[method-assign]
        served.close()
    names = ("pause", "start_weight_update", "update_weights", "finish_weight_update", "weight_checker", "resume")
    medians = {name: statistics.median(phases[name][-options.repeats :]) for name in names}  # the first warms up
    total, still = statistics.median(totals[1:]), sum(medians.values())
    per_gb = {"total": total, "write": total - still, "still": still, **medians}
    return {"gb": round(size, 3), "seconds_per_gb": {name: round(value / size, 3) for name, value in per_gb.items()}}


def main() -> None:
    """Measure and print; a turn has `TOKENS` tokens, and `--gb` is the size of an update's weights in 10^9 bytes."""
    options = read_options(__doc__, episodes=256, turns=8, repeats=3, gb=0.3)
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    figures = {"turns": measure_turns(options), "updates": measure_updates(options)}
    settings = {"episodes": options.episodes, "turns_each": options.turns, "repeats": options.repeats}
    print_result("policy_server", **settings, **figures, load_before=load, torch=torch.__version__)


if __name__ == "__main__":
    main()
