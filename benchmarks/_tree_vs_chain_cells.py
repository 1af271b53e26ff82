"""The cells of benchmarks/tree_vs_chain.py: one game and seed warm-started once, then trained by each recipe.

A cell is written as one JSON file when it is whole; what is there already is not made again.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks._studies import ROOT, Game
from envgym.agents.evaluation.metrics.base import build_metrics
from envgym.agents.evaluation.play import EvalPlan, evaluate, token_player
from envgym.errors import RunError, sentence
from envgym.files import write_json
from envgym.seeds import derive_seed
from envgym.settings import Settings
from envgym.trainer.build import RunContext, build_run_context
from envgym.trainer.checks.preflight import check_invalid
from envgym.trainer.learner.checkpoint import TrainState, save_checkpoint
from envgym.trainer.metrics.rollout import rollout_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.groups import Stats, updated_stats
from envgym.trainer.settings import TrainSettings, load_train_settings
from envgym.trainer.workflows.evaluations import evaluation_metrics
from envgym.trainer.workflows.sft import warm_start

EXAMPLES = ROOT / "examples" / "tree_vs_chain"
WARM_START = "warm_start"
"""Names the cell that the others begin with."""


class Declaration(Settings):
    """What was fixed before the first declared seed was run."""

    seeds: tuple[int, ...]
    pilot_seeds: tuple[int, ...]
    baseline: str
    arms: tuple[str, ...]
    """Recipes that are compared with the baseline."""
    tasks: int = Field(ge=1)
    """Held-out tasks of every evaluation."""
    points: int = Field(ge=1)
    """Evaluations at equal distances of the budget, after the warm start's."""
    games: dict[str, Game]

    @property
    def recipes(self) -> tuple[str, ...]:
        """The baseline and the arms."""
        return self.baseline, *self.arms

    def minimum_detectable_effects(self, games: Iterable[str]) -> dict[str, float | None]:
        """Return the minimum detectable effect by game."""
        return {game: self.games[game].minimum_detectable_effect for game in games}


TOTALS = {
    "tokens_generated": "cost/tokens_generated",
    "tokens_prefilled": "cost/tokens_prefilled",
    "env_steps": "cost/env_steps",
    "episodes": "rollout/episodes",
}
"""What a cell sums over its train steps, and the metric of the training loop it is read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPaths:
    """Where the cells of one game and seed lie."""

    game: str
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        """Their directory."""
        return self.root / self.game / f"seed-{self.seed}"

    def cell(self, recipe: str) -> Path:
        """The file of one recipe, or of the warm start."""
        return self.folder / f"{recipe}.json"

    @property
    def model(self) -> Path:
        """The warm start's weights."""
        return self.folder / WARM_START / "step-000000" / "model"


def run_seed(declared: Declaration, paths: CellPaths, overrides: tuple[str, ...] = ()) -> None:
    """Make the missing cells of one game and seed. Raises: RunError: one that is there has other settings."""
    if not paths.cell(WARM_START).exists():
        _warm_start(paths, _settings(declared, paths, declared.baseline, overrides, model="tiny"))
    for recipe in declared.recipes:
        settings = _settings(declared, paths, recipe, overrides, model=str(paths.model))
        if paths.cell(recipe).exists():
            _check_same(paths.cell(recipe), settings)
        else:
            _train(paths, recipe, settings, marks=list(marks(declared, paths.game)))


def marks(declared: Declaration, game: str) -> Iterator[int]:
    """Yield the budgets at which a policy is evaluated; the last is the whole."""
    budget = declared.games[game].budget
    yield from (budget * number // declared.points for number in range(1, declared.points + 1))


def _settings(
    declared: Declaration, paths: CellPaths, recipe: str, overrides: tuple[str, ...], *, model: str
) -> TrainSettings:
    own = {
        "recipe": recipe,
        "run.seed": paths.seed,
        "model.tiny.seed": paths.seed,
        "model.name": model,
        "evaluation.tasks": declared.tasks,
    }
    sets = (*(f"{name}={value}" for name, value in own.items()), *overrides)
    return load_train_settings(EXAMPLES / f"{paths.game}.yaml", sets)


def _plain(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a cell depends on; where the weights lie is not one of them."""
    plain = settings.model_dump(mode="json")
    plain["model"].pop("name")
    return plain


def _check_same(cell: Path, settings: TrainSettings) -> None:
    if json.loads(cell.read_text())["settings"] != _plain(settings):
        do = "delete it, or name another --out"
        raise RunError(sentence("cell", "be made with the settings of now", "others", where=str(cell), do=do))


def _warm_start(paths: CellPaths, settings: TrainSettings) -> None:
    started, started_cpu = time.perf_counter(), time.process_time()
    bench = build_run_context(settings)
    assert settings.sft is not None, "both games have one"
    with asyncio.Runner() as runner:
        metrics = runner.run(warm_start(bench, settings, settings.sft, on_progress=lambda *_: None)).metrics
        bench.policy.set_version(0)
        point = _evaluated(runner, bench, settings, step=0)
    save_checkpoint(
        paths.folder / WARM_START,
        state=TrainState(step=0, stats={}),
        model=bench.model,
        tokenizer=bench.tokenizer,
        learner=bench.learner,
        keep=1,
    )
    _write(paths, WARM_START, settings, (started, started_cpu), [{"budget": 0, "spent": 0, **point}], metrics)


def _train(paths: CellPaths, recipe: str, settings: TrainSettings, *, marks: list[int]) -> None:
    """Train until the budget is spent; evaluate after the first step at which each mark is reached."""
    started, started_cpu = time.perf_counter(), time.process_time()
    bench = build_run_context(settings)
    stats: Stats = {}
    step, spent, points, totals = 0, 0, list[Metrics](), dict.fromkeys((*TOTALS, "rows"), 0.0)
    with asyncio.Runner() as runner:
        while len(points) < len(marks):
            collector = bench.make_collector(settings, rounds=settings.resampling.rounds)
            requests, groups, *_ = runner.run(collector.take(step, stats=stats))
            step += 1
            check_invalid(groups, limit=0.0, step=step)
            kept = bench.method.filter(groups).at_most(settings.rollout.groups).kept
            rows = bench.build_batch(kept, step=step - 1).rows
            if rows:
                bench.learner.train_step(rows, bench.method.objective, step=step - 1)
            bench.policy.set_version(step)
            stats = updated_stats(stats, requests, groups, step=step)
            rollout = rollout_metrics(groups, success_at=settings.evaluation.success_at)
            for name, metric in TOTALS.items():
                totals[name] += rollout[metric]
            totals["rows"] += len(rows)
            spent = round(totals["tokens_generated"] + totals["tokens_prefilled"])
            while len(points) < len(marks) and spent >= marks[len(points)]:
                point = _evaluated(runner, bench, settings, step=step)
                points.append({"budget": marks[len(points)], "spent": spent, **point})
    _write(paths, recipe, settings, (started, started_cpu), points, {**totals, "steps": float(step)})


def _evaluated(runner: asyncio.Runner, bench: RunContext, settings: TrainSettings, *, step: int) -> Metrics:
    """Return success on the held-out tasks: the same tasks and sampling seeds for every recipe of a seed."""
    (env_source,) = bench.env_sources.values()
    evaluation, search = settings.evaluation, bench.evaluation_search
    plan = EvalPlan(
        env_id=env_source.env_id,
        make_env=env_source.make,
        tasks=env_source.held_out,
        settings=evaluation,
        seed=derive_seed(settings.run.seed, "evaluation"),
        selection=search.selection,
        metrics=build_metrics(evaluation.metrics, success_at=evaluation.success_at),
    )
    play = token_player(bench.agent, bench.policy, search, evaluation, concurrency=settings.engine.concurrency)
    record = runner.run(evaluate(plan, play, step=step)).record
    return {**evaluation_metrics(record), "step": float(step), "turns": record.costs["turns"]}


def _write(
    paths: CellPaths,
    name: str,
    settings: TrainSettings,
    started: tuple[float, float],
    points: list[Metrics],
    metrics: Metrics,
) -> None:
    paths.folder.mkdir(parents=True, exist_ok=True)
    cell: dict[str, Any] = {
        "game": paths.game,
        "seed": paths.seed,
        "recipe": name,
        "points": points,
        "metrics": metrics,
        "wall_s": time.perf_counter() - started[0],
        "cpu_s": time.process_time() - started[1],
        "settings": _plain(settings),
    }
    write_json(paths.cell(name), cell)
    success = " ".join(f"{point['success']:.3f}" for point in points)
    print(f"{paths.game} seed {paths.seed} {name}: {success} ({cell['cpu_s']:.0f} CPU s)", flush=True)
