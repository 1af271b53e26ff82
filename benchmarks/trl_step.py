"""Seconds of one GRPO step of envgym against TRL's `GRPOTrainer`: same prompts, group, lengths and precision.

Run: .venv-peers/bin/python benchmarks/trl_step.py [--cases single tools] [--steps 2] [--seconds 0]. Prints one
JSON line. A case ends after `--steps` steps, or after the first one at which its share of `--seconds` is used up.
Cases: `single`, one turn of 64 new tokens; `tools`, three turns of 32 with a tool's answer between them. On both sides
nothing but the limit ends a turn, a scripted parser takes every turn of `tools` for a call, and the tool runs. TRL goes
through its own tool loop. envgym's step is that of its training loop as it comes, with canary, mask audit and saved
episodes. Weights are bfloat16 on both sides, without autocast; neither recomputes activations, and neither has a KL
term. After one step to warm up, the two alternate, step by step. The ratio is that of the medians; `new_tokens` is
counted on both sides.
"""

import argparse
import asyncio
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks._clock import timed
from benchmarks._options import print_result, read_options
from benchmarks._talks import ENV_ID, TOOL, Ledger, number_of
from benchmarks._trl_side import make_trainer, prompt, train
from envgym.agents.models.loading import load
from envgym.agents.protocols import Generation, Renderer, Rendering
from envgym.core.messages import Action, Message, Observation, Role, ToolCall
from envgym.core.tasks import Split
from envgym.registry import register
from envgym.runs.directory import RunDirectory
from envgym.tools import ToolSpec
from envgym.trainer.build import build_run_context
from envgym.trainer.learner.allocator import freed_memory_kept
from envgym.trainer.learner.learner import Learner
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.prepare import PreparedRun
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import TrainLoop

TARGETS: Final = {"single": 1.5, "tools": 3.0}
"""How much faster a step has to be."""


@dataclass(frozen=True, slots=True)
class Case:
    """What both sides do in a step."""

    turns: int
    tokens: int
    """New ones in each turn."""
    group: int

    @property
    def new_tokens(self) -> int:
        return self.turns * self.tokens * self.group


class Step(NamedTuple):
    """One step of one side."""

    seconds: float
    phases: dict[str, float]
    new_tokens: int


class Scripted:
    """A renderer that lets nothing end a turn, and takes every turn for a call of the tool where there is one."""

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, inner: Renderer, *, calls: bool) -> None:
        """Leave all but the reading of turns to `inner`."""
        self._inner, self._calls = inner, calls
        self.encode_action, self.token_strings = inner.encode_action, inner.token_strings

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        return self._inner.start(messages, tools)

    def extend(
        self, history: Sequence[Message], generation: Generation, observation: Observation, tools: Sequence[ToolSpec]
    ) -> Rendering:
        return self._inner.extend(history, generation, observation, tools)

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        """Read the text as ever; the call is scripted."""
        action = self._inner.parse(token_ids, tools)
        calls = (ToolCall(name=TOOL, arguments={"number": number_of(token_ids)}),) if self._calls else ()
        return Action(str(action), content=action.content, tool_calls=calls)


class Ours:
    """The training loop of envgym, step by step."""

    def __init__(self, case: Case, options: argparse.Namespace, folder: Path) -> None:
        """Build everything; nothing is saved but the steps' episodes."""
        settings = _settings(case, options, folder)
        bench = build_run_context(settings)
        renderer = Scripted(bench.agent.renderer, calls=case.turns > 1)
        self.opening = _opening(bench.agent.renderer, case)
        self.system = system_text(bench.tokenizer.decode(self.opening))
        self._bench = replace(bench, agent=replace(bench.agent, renderer=renderer))
        run = RunDirectory.create(folder, name="step", config={})
        self.metrics: dict[str, float] = {}
        """Of the newest step."""
        prepared = PreparedRun(directory=run, context=self._bench, warm_sources=())
        self._loop = TrainLoop(settings, prepared, _Keeping(self.metrics))
        self._runner = asyncio.Runner()

    def step(self) -> Step:
        optimizer = type(self._bench.learner.optimizer)
        with (
            timed(Learner, {"train_step": "learn"}) as spent,
            timed(torch.Tensor, {"backward": "backward"}) as back,
            timed(optimizer, {"step": "update"}) as own,
            freed_memory_kept(),  # as training does; what is kept goes back, for the other side's step
        ):
            self._loop._train_step(self._runner)
        seen = self.metrics
        phases = {
            "generate": seen["time/collect_s"],
            "score": seen["time/learn_s"] - spent["learn"],
            "forward": spent["learn"] - back["backward"] - own["update"],
            "backward": back["backward"],
            "update": own["update"],
            "other": seen["time/step_s"] - seen["time/collect_s"] - seen["time/learn_s"],
        }
        return Step(seen["time/step_s"], phases, round(seen["cost/tokens_generated"]))

    def close(self) -> None:
        self._runner.close()
        self._bench.policy.close()


class _Keeping(Callback):
    def __init__(self, seen: dict[str, float]) -> None:
        self._seen = seen

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._seen.clear()
        self._seen.update(metrics)


def _settings(case: Case, options: argparse.Namespace, folder: Path) -> TrainSettings:
    return train_settings(
        {
            "run": {
                "directory": str(folder),
                "steps": options.steps + 1,
                "checkpoint_every": 1_000,
                "trackers": [],
            },
            "model": {"name": options.model, "precision": "bfloat16"},
            "engine": {"device": "cpu", "threads": options.threads},
            "agent": {"max_turn_tokens": case.tokens, "on_length": "close"},
            "envs": [{"id": ENV_ID, "settings": {"looks": case.turns if case.turns > 1 else 0}}],
            "rollout": {"groups": 1, "group_size": case.group},
            "optim": {"lr": 1e-6},
            "evaluation": {"tasks": 1, "tasks_during": 1},
        }
    )


def _opening(renderer: Renderer, case: Case) -> list[int]:
    """Return the tokens of the first prompt, tools and all."""
    env = Ledger(looks=case.turns if case.turns > 1 else 0)
    tools = tuple(item.spec for item in env.toolset().values())
    question = Message(role=Role.USER, content=env.tasks.task(Split.TRAIN, 0).prompt)
    rendering = renderer.start((Message(role=Role.SYSTEM, content=env.system_prompt), question), tools)
    return [token for segment in rendering.segments for token in segment.token_ids]


def system_text(opening: str) -> str:
    """Return the system message of a rendered ChatML prompt."""
    return opening.split("system\n", 1)[1].split("<|im_end|>", 1)[0]


def compare(ours: Sequence[Step], theirs: Sequence[Step]) -> dict[str, object]:
    """Return both sides' medians, and how many times faster envgym is: by the step, and by the new token."""
    sides = {"envgym": ours, "trl": theirs}
    seconds = {name: statistics.median(step.seconds for step in steps) for name, steps in sides.items()}
    per_token = {name: statistics.median(s.seconds / s.new_tokens for s in steps) for name, steps in sides.items()}
    return {
        "speedup": round(seconds["trl"] / seconds["envgym"], 2),
        "speedup_per_token": round(per_token["trl"] / per_token["envgym"], 2),
        **{
            name: {
                "median_s": round(seconds[name], 2),
                "steps_s": [round(step.seconds, 2) for step in steps],
                "new_tokens": [step.new_tokens for step in steps],
                "phases": {
                    phase: round(statistics.median(step.phases[phase] for step in steps), 2)
                    for phase in steps[0].phases
                },
            }
            for name, steps in sides.items()
        },
    }


def run_case(case: Case, options: argparse.Namespace, seconds: float) -> dict[str, object]:
    """Let the two sides take turns, for a wall time after which one more step ends; the first step does not count."""
    deadline = time.monotonic() + seconds
    ours: list[Step] = []
    theirs: list[Step] = []
    with tempfile.TemporaryDirectory() as folder:
        side = Ours(case, options, Path(folder) / "envgym")
        loaded = load(options.model, dtype="bfloat16", trainable=True)
        steps = options.steps + 1
        trainer = make_trainer(
            loaded.model, loaded.tokenizer, case, system=side.system, steps=steps, folder=f"{folder}/trl"
        )

        ids = loaded.tokenizer.apply_chat_template(
            prompt(side.system, 0), add_generation_prompt=True, return_dict=False
        )
        assert ids == side.opening, "both sides begin with the same tokens"

        def after_step(seconds: float, phases: dict[str, float], new_tokens: int) -> bool:
            theirs.append(Step(seconds, phases, new_tokens))
            ours.append(side.step())
            print(f"trl {seconds:.2f} s, envgym {ours[-1].seconds:.2f} s", file=sys.stderr)
            return len(ours) > 1 and time.monotonic() > deadline

        try:
            train(trainer, after_step)
        finally:
            side.close()
    return {"prompt_tokens": len(ids), **compare(ours[1:], theirs[1:])}


def main() -> None:
    """Measure the cases, each after one step to warm up, and print one line."""
    threads, names = torch.get_num_threads(), tuple(TARGETS)
    options = read_options(
        __doc__,
        model="smollm2",
        cases=names,
        steps=2,
        seconds=0,
        group=8,
        single_tokens=64,
        turn_tokens=32,
        threads=threads,
    )
    share = options.seconds / len(options.cases) or math.inf
    torch.set_num_threads(options.threads)
    register(ENV_ID, "benchmarks._talks:Ledger")
    cases = {
        "single": Case(turns=1, tokens=options.single_tokens, group=options.group),
        "tools": Case(turns=3, tokens=options.turn_tokens, group=options.group),
    }
    results: dict[str, object] = {}
    for name in options.cases:
        before = os.getloadavg()[0]
        compared = run_case(cases[name], options, share)
        results[name] = {**compared, "target": TARGETS[name], "load": [round(before, 1), round(os.getloadavg()[0], 1)]}
    settings = {"model": options.model, "group": options.group, "threads": options.threads}
    print_result("trl_step", **settings, cases=results, trl=version("trl"), torch=torch.__version__)


if __name__ == "__main__":
    main()
