"""Training runs in which policy and env are late and fail, and their records against the weights that they name.

The weights of every version are kept, so that each recorded token can be scored again by those that it says sampled it.
"""

import asyncio
import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from envgym.agents.policies.engine.policy import TransformersPolicy
from envgym.agents.protocols import GenerateRequest, Generation
from envgym.core.trajectory import Row, trajectories
from envgym.core.tree import Tree
from envgym.records import StepResult
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.seeds import generator
from envgym.trainer.build import build_run_context
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.prepare import PreparedRun
from envgym.trainer.run import RunContext
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import TrainLoop
from envgym.wrappers.base import AnyEnv
from envgym.wrappers.faults import FaultRates, Faults
from tests.support.tiny_runs import tiny_settings

GROUPS, SIZE = 2, 4
MAX_DELAY_S = 0.005
FAILURE_RATE = 0.02
"""Probability that a request, or a step of an env, fails."""

Weights = Mapping[str, Tensor]


class UnreliableEnv(Faults):
    """An env that answers late, from a thread, loses its tools, and crashes."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env, FaultRates(latency_s=MAX_DELAY_S, infra_failure=FAILURE_RATE), seed=0)
        env.unwrapped.blocking = True

    def on_step(self, action: str) -> StepResult:
        if generator("crash", self.task.key, str(action)).random() < FAILURE_RATE:
            raise RuntimeError("injected: the env crashed")
        return super().on_step(action)


class UnreliablePolicy(TransformersPolicy):
    """A policy that shares the learner's weights, answers late, and fails; whom it serves has to queue."""

    async def generate(self, request: GenerateRequest) -> Generation:
        delay, failure = generator("policy", request.seed).random(2)
        await asyncio.sleep(MAX_DELAY_S * delay**3)  # few are very late
        if failure < FAILURE_RATE:
            raise RuntimeError("injected: the policy failed")
        return await super().generate(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    model: Any
    """PreTrainedModel."""
    weights: Mapping[int, Weights]
    """By version."""
    metrics: list[Metrics]
    """Of every step."""
    trees: list[list[Tree]]
    """Collected by every step."""


class _KeepWeights(Callback):
    def __init__(self, model: Any) -> None:  # PreTrainedModel
        self._model = model
        self.weights: dict[int, Weights] = {}

    def on_start(self, directory: Path, config: Mapping[str, Any], first_step: int, last_step: int) -> None:
        self.on_step(0, {})

    def on_step(self, step: int, metrics: Metrics) -> None:
        self.weights[step] = {name: weight.clone() for name, weight in self._model.state_dict().items()}


def run_settings(
    directory: Path, *, steps: int, search: Mapping[str, Any], rollout: Mapping[str, Any]
) -> TrainSettings:
    """Return a run whose every update moves the weights far, on games of several turns."""
    wrapped = {"settings": {"max_turns": 3}, "wrappers": [f"{__name__}:{UnreliableEnv.__name__}"]}
    return tiny_settings(
        directory,
        run={"steps": steps, "max_invalid_rate": 1.0, "checkpoint_every": 10},
        engine={"concurrency": 6},
        envs=[{"id": "puzzles/frozen_lake-v0", **wrapped}],
        agent={"max_turn_tokens": 8, "max_context_tokens": 512},
        search=search,
        rollout={"groups": GROUPS, "group_size": SIZE, **rollout},
        optim={"lr": 0.01},
        objective={"entropy_coef": 0.2},
    )


def run(settings: TrainSettings) -> RunRecord:
    context = _unreliable(build_run_context(settings), settings)
    keeper = _KeepWeights(context.model)
    directory = RunDirectory.create(settings.run.path, name="run", config=settings.model_dump(mode="json"))
    with asyncio.Runner() as runner:
        TrainLoop(settings, PreparedRun(directory=directory, context=context, warm_sources=()), keeper).run(runner)
    steps = range(1, settings.run.steps + 1)
    return RunRecord(
        model=context.model,
        weights=keeper.weights,
        metrics=[row for row in directory.metrics() if row["step"] > 0],
        trees=[trees_of(directory.episodes([step], label="train")) for step in steps],
    )


def _unreliable(context: RunContext, settings: TrainSettings) -> RunContext:
    policy = UnreliablePolicy(
        context.model, max_batch=4, deterministic=settings.rollout.deterministic, shares_weights=True
    )
    return replace(context, policy=policy)


# ---- recorded log-probs against the weights -------------------------------------------------------------------------


class Gaps(NamedTuple):
    """How far recorded log-probs are from those of some weights, nats; one entry a sampled token."""

    own: list[float]
    """By the weights of the version that the token carries."""
    before: list[float]
    """By those of the version before, where there is one."""


def logprob_gaps(record: RunRecord) -> Gaps:
    """Score every recorded row by every version that its tokens carry, and by the versions before."""
    rows = [row for trees in record.trees for tree in trees for episode in trajectories(tree) for row in episode.rows]
    rows_of: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        for version in {version for version in _versions(row) if version is not None}:
            rows_of[version].append(row)
    gaps = Gaps([], [])
    model = copy.deepcopy(record.model)
    for version, sampled in sorted(rows_of.items()):
        gaps.own.extend(_gaps(model, record.weights[version], sampled, version))
        if version:
            gaps.before.extend(_gaps(model, record.weights[version - 1], sampled, version))
    return gaps


def _gaps(model: Any, weights: Weights, rows: list[Row], version: int) -> list[float]:  # PreTrainedModel
    model.load_state_dict(weights)
    scored = asyncio.run(TransformersPolicy(model).compute_logprobs([row.token_ids for row in rows]))
    return [
        abs(recorded - expected)
        for row, logprobs in zip(rows, scored, strict=True)
        for sampled_by, recorded, expected in zip(_versions(row), row.behavior_logprobs, logprobs, strict=True)
        if sampled_by == version
    ]


def _versions(row: Row) -> list[int | None]:
    return [segment.policy_version for segment in row.segments for _ in segment.token_ids]
