"""Three GRPO steps behind a warm start, number for number: what is said is scripted, so no rounding can flip a sample.

`ENVGYM_WRITE_GOLDEN=1` writes the golden file anew, after a change that is meant to change the numbers.
"""

import asyncio
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.core.messages import Action
from envgym.parsing import tool_call_action
from envgym.runs.directory import RunDirectory
from envgym.trainer.build import build_run_context
from envgym.trainer.metrics.callbacks import Callbacks
from envgym.trainer.prepare import PreparedRun
from envgym.trainer.run import RunContext
from envgym.trainer.settings import train_settings
from envgym.trainer.train import TrainLoop
from envgym.trainer.workflows.demonstrations import demonstration_sources
from tests.support.generations import generated
from tests.support.tiny_runs import TINY, comparable

GOLDEN = Path(__file__).parent / "golden" / "three_steps.json"
SETTINGS: dict[str, Any] = {
    "run": {"name": "golden", "steps": 3, "trackers": []},
    "model": {"name": "tiny", "tiny": TINY},
    "engine": {"device": "cpu"},
    "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1, "kinds": ["expression"]}}],
    "agent": {"name": "tool_calling", "max_turn_tokens": 64, "max_context_tokens": 512},
    "sft": {"episodes": 16, "batch_size": 8, "lr": 0.003},
    "rollout": {"groups": 3, "group_size": 4},
    "filter": {"name": "keep_all"},
    "correction": {"name": "tis"},
    "optim": {"lr": 0.001, "minibatches": 2},
    "objective": {"kl_coef": 0.01, "entropy_coef": 0.001},
    "evaluation": {"tasks": 2},
    "canary": {"enabled": False},  # what a script states as log-probs is no model's
}


def scripted(bench: RunContext) -> ScriptedPolicy:
    """Return a policy that calls the calculator and repeats its answer, guesses, or writes a bad call, by the seed."""

    def words(request: GenerateRequest) -> str:
        context = bench.tokenizer.decode(request.token_ids)
        if results := re.findall(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", context):
            return str(results[-1])
        expression = re.findall(r"Compute (.+?)\.", context)[-1]
        return (tool_call_action("calculator", expression=expression), "12", "<tool_call>{oops</tool_call>")[
            request.seed % 3
        ]

    def answer(request: GenerateRequest) -> Generation:
        return generated(bench.agent.renderer.encode_action(Action(words(request))), -4.0, version=0)

    return ScriptedPolicy(answer)


def numbers_of_a_run(directory: Path) -> list[dict[str, float]]:
    """Run, and return the metrics that no clock makes."""
    settings = train_settings({**SETTINGS, "run": {**SETTINGS["run"], "directory": str(directory)}})
    bench = build_run_context(settings)
    run = RunDirectory.create(directory, name="golden", config=settings.model_dump(mode="json"))
    with asyncio.Runner() as runner:
        parts = replace(bench, policy=scripted(bench))
        prepared = PreparedRun(directory=run, context=parts, warm_sources=demonstration_sources(settings.sft))
        TrainLoop(settings, prepared, Callbacks(())).run(runner)
    return comparable(run)


def test_three_steps_give_the_golden_numbers(tmp_path: Path) -> None:
    found = numbers_of_a_run(tmp_path / "run")
    if os.environ.get("ENVGYM_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    frozen = json.loads(GOLDEN.read_text())
    assert [row["step"] for row in found] == [row["step"] for row in frozen] == [0, 1, 2, 3]
    for row, golden in zip(found, frozen, strict=True):
        # The same arithmetic in another order of summation, on another processor: far below a thousandth.
        assert {name: row[name] for name in golden} == pytest.approx(golden, rel=1e-3, abs=1e-6)
