"""Tokens per second of vLLM, of the transformers policy and of plain batched `generate`, on the same conversations.

Run: .venv-vllm/bin/python -m benchmarks.engines [--dtype bfloat16] [--cells E1 E16 E64 tree] [--repeats 1]. Prints one
JSON line. Without vLLM in the interpreter the other two are measured.
Cells: so many episodes of three turns at a time (E), with a tool's answer between turns, after one system prompt; and
a tree of depth 3 and width 4. Turns have a fixed number of tokens, which nothing ends early, and answers are equally
long, so all engines see contexts of the same lengths. `generate` is what one writes first: the whole conversations, in
one batch, anew for every turn; as they are equally long it needs no padding. `recomputed`, which must be asked for, is
the transformers policy that keeps no prefix from turn to turn. In a cell the engines alternate, and the best repeat of
each counts. Phases of vLLM are not listed, as it samples in another process. `load` is the machine's,
at the beginning and at the end of a cell: below 1 nobody else was there.
"""

import argparse
import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import torch

from benchmarks._clock import timed
from benchmarks._options import print_result, read_options
from benchmarks._talks import CELLS, Count, Ids, Shape, Talk, lead, make_talk
from envgym.agents.models.loading import LoadedModel, load
from envgym.agents.policies.engine import batch_engine as _batch_engine
from envgym.agents.policies.engine import prefixes as _prefixes
from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.policies.vllm.policy import VllmPolicy
from envgym.agents.rendering.factory import AutoRendererFactory
from envgym.errors import check_known

ENGINES: Final = ("generate", "transformers", "recomputed", "vllm")
MAX_BATCH: Final = 64


class Run(NamedTuple):
    """One engine, once through a cell."""

    wall_s: float
    cpu_s: float
    """Of this process: all of the work, but for vLLM."""
    did: Count
    phases: dict[str, float]
    """Wall seconds."""


class Side(Protocol):
    """An engine and how it is used."""

    def __call__(self, talk: Talk, shape: Shape, *, tokens: int) -> tuple[Count, dict[str, float]]:
        """Sample every turn from an empty cache; return what was done, and the phases where they are known."""
        ...


class Generate:
    """`model.generate` as it comes: for every turn one batch, from the first token on."""

    def __init__(self, model: Any) -> None:  # PreTrainedModel
        """Let nothing but the limit end a turn."""
        self._model = model
        model.generation_config.eos_token_id = None

    def __call__(self, talk: Talk, shape: Shape, *, tokens: int) -> tuple[Count, dict[str, float]]:
        """Sample turn by turn, all conversations together."""
        contexts = [opening for opening in talk.openings[: shape.roots] for _ in range(shape.width)]
        prefilled, prefill_s, total_s = 0, 0.0, 0.0
        for turn in range(shape.turns):
            if turn:
                longer = [context + talk.reply(index) for index, context in enumerate(contexts)]
                contexts = [context for context in longer for _ in range(shape.width)]
            prefilled += sum(map(len, contexts))
            started = time.perf_counter()
            contexts, first_s = self._turn(contexts, tokens)
            total_s += time.perf_counter() - started
            prefill_s += first_s
        longest = len(contexts[0]) - tokens
        count = Count(tokens * sum(shape.rows), prefilled, longest)
        return count, {"prefill": prefill_s, "decode": total_s - prefill_s}

    def _turn(self, contexts: list[Ids], tokens: int) -> tuple[list[Ids], float]:
        """Return the contexts with what was sampled after them, and the seconds to the first token."""
        ids = torch.tensor(contexts)
        times: list[float] = []

        def note_time(*_: object, **__: object) -> torch.Tensor:
            times.append(time.perf_counter())
            return torch.zeros(len(contexts), dtype=torch.bool)

        started = time.perf_counter()
        with torch.inference_mode():
            generated = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=tokens,
                pad_token_id=0,
                stopping_criteria=[note_time],
            )
        assert generated.shape[1] == ids.shape[1] + tokens, "nothing but the limit ends a turn"
        return [tuple(row) for row in generated.tolist()], times[0] - started


class Transformers:
    """The transformers policy."""

    def __init__(self, model: Any, *, min_shared: int = _prefixes.MIN_SHARED) -> None:  # PreTrainedModel
        """Prepare to serve; a prefix of fewer than `min_shared` tokens is not kept."""
        self._policy, self._min_shared = TransformersPolicy(model, max_batch=MAX_BATCH), min_shared

    def __call__(self, talk: Talk, shape: Shape, *, tokens: int) -> tuple[Count, dict[str, float]]:
        """Lead it through the conversations; prefixes are forgotten before."""
        _prefixes.MIN_SHARED = self._min_shared
        self._policy.set_version(0)
        with timed(_batch_engine.BatchEngine, {"admit": "prefill", "step": "decode"}) as phases:
            return asyncio.run(lead(self._policy, talk, shape, tokens=tokens)), phases


class Vllm:
    """vLLM in a process of its own."""

    def __init__(self, source: str, options: argparse.Namespace) -> None:
        self.policy = VllmPolicy(source, dtype=options.dtype, max_batch=MAX_BATCH, threads=options.threads)

    def __call__(self, talk: Talk, shape: Shape, *, tokens: int) -> tuple[Count, dict[str, float]]:
        """Lead it through the conversations; prefixes are forgotten before."""
        self.policy.set_version(0)
        return asyncio.run(lead(self.policy, talk, shape, tokens=tokens)), {}


def measure(side: Side, talk: Talk, shape: Shape, *, tokens: int) -> Run:
    started, started_cpu = time.perf_counter(), time.process_time()
    count, phases = side(talk, shape, tokens=tokens)
    wall, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    return Run(wall, cpu, count, {**phases, **({"other": wall - sum(phases.values())} if phases else {})})


def summary(runs: Mapping[str, list[Run]]) -> dict[str, object]:
    """Return tokens per second of every engine by its best run, and the ratios to plain generate."""
    best = {name: min(of_engine, key=lambda run: run.wall_s) for name, of_engine in runs.items()}
    rates = {name: run.did.sampled / run.wall_s for name, run in best.items()}
    cpu = {name: min(run.cpu_s for run in of_engine) for name, of_engine in runs.items() if name != "vllm"}
    return {
        "engines": {
            name: {
                "tokens_per_s": round(rates[name], 2),
                "wall_s": [round(run.wall_s, 2) for run in runs[name]],
                **({"cpu_s": round(cpu[name], 2)} if name in cpu else {}),
                **run.did._asdict(),
                "phases": {phase: round(seconds, 2) for phase, seconds in run.phases.items()},
            }
            for name, run in best.items()
        },
        "to_generate": {
            name: round(rate / rates["generate"], 2) for name, rate in rates.items() if "generate" in rates
        },
        "cpu_to_generate": {
            name: round(cpu["generate"] / spent, 2) for name, spent in cpu.items() if "generate" in cpu
        },
    }


def start(name: str, loaded: LoadedModel, options: argparse.Namespace) -> Side:
    if name == "vllm":
        return Vllm(loaded.source, options)
    if name == "recomputed":
        return Transformers(loaded.model, min_shared=sys.maxsize)
    return Generate(loaded.model) if name == "generate" else Transformers(loaded.model)


def main() -> None:
    """Measure all installed engines but `recomputed`, or some of `ENGINES`, and print one line."""
    options = read_options(
        __doc__,
        model="smollm2",
        dtype="bfloat16",
        cells=tuple(CELLS),
        engine=(),
        repeats=1,
        tokens=24,
        threads=torch.get_num_threads(),
    )
    for name in options.engine:
        check_known("engine", name, ENGINES, where="--engine")
    torch.set_num_threads(options.threads)
    has_vllm = importlib.util.find_spec("vllm") is not None
    names = options.engine or ["generate", "transformers", *(["vllm"] if has_vllm else [])]
    loaded = load(options.model, dtype=options.dtype)
    renderer = AutoRendererFactory()(loaded.tokenizer)
    sides = {name: start(name, loaded, options) for name in names}
    try:
        for side in sides.values():  # loads what is loaded lazily
            measure(side, make_talk(renderer, 1), Shape(1, 1, 1), tokens=2)
        cells: dict[str, object] = {}
        for cell in options.cells:
            shape = CELLS[cell]
            runs: dict[str, list[Run]] = {name: [] for name in names}
            talk, load_before = make_talk(renderer, shape.roots), os.getloadavg()[0]
            for _ in range(options.repeats):
                for name, side in sides.items():
                    runs[name].append(measure(side, talk, shape, tokens=options.tokens))
            cells[cell] = {**summary(runs), "load": [round(load_before, 1), round(os.getloadavg()[0], 1)]}
            print(f"{cell}: {cells[cell]}", file=sys.stderr)
    finally:
        for side in sides.values():
            if isinstance(side, Vllm):
                side.policy.close()
    settings = {name: getattr(options, name) for name in ("model", "dtype", "tokens", "repeats", "threads")}
    print_result("engines", **settings, cells=cells, torch=torch.__version__)


if __name__ == "__main__":
    main()
