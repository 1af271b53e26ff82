"""The cells of benchmarks/tree_vs_chain.py: one game and seed warm-started once, then trained by each recipe.

A cell is written as one JSON file when it is whole; what is there already is not made again.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from envgym.agents.evaluation import EvalPlan, evaluate, held_out_tasks, record_evaluation
from envgym.errors import RunError, SettingsError, sentence
from envgym.runs import write_json
from envgym.seeds import derive_seed
from envgym.settings import Settings, build_settings, read_settings_file
from envgym.trainer.batch.rows import train_rows
from envgym.trainer.build import RunContext, build_run_context
from envgym.trainer.checks.groups import check_invalid
from envgym.trainer.learner.checkpoint import TrainState, save_checkpoint
from envgym.trainer.metrics.rollout import rollout_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.collector import collect
from envgym.trainer.rollout.task_stats import Stats, updated_stats
from envgym.trainer.settings import TrainSettings, load_train_settings
from envgym.trainer.train import evaluation_metrics
from envgym.trainer.workflows.sft import warm_start

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "tree_vs_chain"
WARM_START = "warm_start"
"""Names the cell that the others begin with."""


class Game(Settings):
    """What is declared about one game; its settings stand in the file of its name."""

    budget: int = Field(ge=1)
    """Tokens generated and prefilled that training may spend."""
    smallest_effect: float | None = Field(default=None, gt=0, le=1)
    """Difference in final success that the declared seeds can show, by the spread of the pilot seeds' differences;
    None: not known yet, and the declared seeds are not run."""


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


def declaration() -> Declaration:
    """Read the declaration."""
    path = EXAMPLES / "declaration.yaml"
    return build_settings(Declaration, read_settings_file(path), where=path.name)


TOTALS = {
    "tokens_generated": "cost/tokens_generated",
    "tokens_prefilled": "cost/tokens_prefilled",
    "env_steps": "cost/env_steps",
    "episodes": "rollout/episodes",
}
"""What a cell sums over its train steps, and the metric of the training loop that says it."""


def check_declared(declared: Declaration, games: Sequence[str]) -> None:
    """See that all that must be known beforehand is. Raises: SettingsError: a game has no smallest effect yet."""
    missing = [game for game in games if declared.games[game].smallest_effect is None]
    if missing:
        do = "run `pilot`, write what it prints into declaration.yaml, and commit that"
        rule = "be declared before the seeds are run"
        raise SettingsError(sentence("smallest_effect", rule, "none", where=", ".join(missing), do=do))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


def run_seed(declared: Declaration, place: Place, overrides: tuple[str, ...] = ()) -> None:
    """Make the missing cells of one game and seed. Raises: RunError: one that is there has other settings."""
    if not place.cell(WARM_START).exists():
        _warm_start(place, _settings(declared, place, declared.baseline, overrides, model="tiny"))
    for recipe in declared.recipes:
        settings = _settings(declared, place, recipe, overrides, model=str(place.model))
        if place.cell(recipe).exists():
            _check_same(place.cell(recipe), settings)
        else:
            _train(place, recipe, settings, marks=list(marks(declared, place.game)))


def marks(declared: Declaration, game: str) -> Iterator[int]:
    """Yield the budgets at which a policy is evaluated; the last is the whole."""
    budget = declared.games[game].budget
    yield from (budget * number // declared.points for number in range(1, declared.points + 1))


def _settings(
    declared: Declaration, place: Place, recipe: str, overrides: tuple[str, ...], *, model: str
) -> TrainSettings:
    own = {
        "recipe": recipe,
        "run.seed": place.seed,
        "model.tiny.seed": place.seed,
        "model.name": model,
        "evaluation.tasks": declared.tasks,
    }
    sets = (*(f"{name}={value}" for name, value in own.items()), *overrides)
    return load_train_settings(EXAMPLES / f"{place.game}.yaml", sets)


def _plain(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a cell depends on; where the weights lie is not one of them."""
    plain = settings.model_dump(mode="json")
    plain["model"].pop("name")
    return plain


def _check_same(cell: Path, settings: TrainSettings) -> None:
    if json.loads(cell.read_text())["settings"] != _plain(settings):
        do = "delete it, or name another --out"
        raise RunError(sentence("cell", "be made with the settings of now", "others", where=str(cell), do=do))


def _warm_start(place: Place, settings: TrainSettings) -> None:
    started, started_cpu = time.perf_counter(), time.process_time()
    bench = build_run_context(settings)
    assert settings.sft is not None, "both games have one"
    with asyncio.Runner() as runner:
        metrics = runner.run(warm_start(bench, settings, settings.sft, on_progress=lambda *_: None))
        bench.policy.update_weights((), 0)
        point = _evaluated(runner, bench, settings, step=0)
    save_checkpoint(
        place.folder / WARM_START,
        state=TrainState(step=0, stats={}),
        model=bench.model,
        tokenizer=bench.tokenizer,
        optimizer=bench.learner.optimizer,
        keep=1,
    )
    _write(place, WARM_START, settings, (started, started_cpu), [{"budget": 0, "spent": 0, **point}], metrics)


def _train(place: Place, recipe: str, settings: TrainSettings, *, marks: list[int]) -> None:
    """Train until the budget is spent; evaluate after the first step at which each mark is reached."""
    started, started_cpu = time.perf_counter(), time.process_time()
    bench = build_run_context(settings)
    stats: Stats = {}
    step, spent, points, totals = 0, 0, list[Metrics](), dict.fromkeys((*TOTALS, "rows"), 0.0)
    with asyncio.Runner() as runner:
        while len(points) < len(marks):
            requests, groups, *_ = runner.run(
                collect(bench, settings, step=step, stats=stats, rounds=settings.resampling.rounds)
            )
            step += 1
            check_invalid(groups, limit=0.0, step=step)
            kept = bench.method.filter(groups).at_most(settings.rollout.groups).kept
            rows = train_rows(bench.method.credits(kept), once=settings.objective.shared_tokens == "once")
            if rows:
                bench.learner.train_step(rows, bench.method.objective, step=step - 1)
            bench.policy.update_weights((), step)
            stats = updated_stats(stats, requests, groups, step=step)
            found = rollout_metrics(groups, success_at=settings.evaluation.success_at)
            for name, metric in TOTALS.items():
                totals[name] += found[metric]
            totals["rows"] += len(rows)
            spent = round(totals["tokens_generated"] + totals["tokens_prefilled"])
            while len(points) < len(marks) and spent >= marks[len(points)]:
                point = _evaluated(runner, bench, settings, step=step)
                points.append({"budget": marks[len(points)], "spent": spent, **point})
    _write(place, recipe, settings, (started, started_cpu), points, {**totals, "steps": float(step)})


def _evaluated(runner: asyncio.Runner, bench: RunContext, settings: TrainSettings, *, step: int) -> Metrics:
    """Return success on the held-out tasks: the same tasks and sampling seeds for every recipe of a seed."""
    (env_source,) = bench.env_sources.values()
    plan = EvalPlan(
        env_id=env_source.env_id,
        make_env=env_source.make,
        tasks=held_out_tasks(env_source.tasks, settings.evaluation.tasks),
        samples=settings.evaluation.samples,
        seed=derive_seed(settings.run.seed, "evaluation"),
        success_at=settings.evaluation.success_at,
    )
    temperature, started = settings.evaluation.temperature, time.perf_counter()
    work = evaluate(
        plan,
        bench.agent,
        bench.policy,
        sampling=bench.sampling(temperature),
        concurrency=settings.rollout.concurrency,
    )
    trees = runner.run(work)
    seconds = time.perf_counter() - started
    record = record_evaluation(plan, trees, step=step, temperature=temperature, seconds=seconds)
    return {**evaluation_metrics(record), "step": float(step), "turns": record.costs["turns"]}


def _write(
    place: Place,
    name: str,
    settings: TrainSettings,
    started: tuple[float, float],
    points: list[Metrics],
    metrics: Metrics,
) -> None:
    place.folder.mkdir(parents=True, exist_ok=True)
    cell: dict[str, Any] = {
        "game": place.game,
        "seed": place.seed,
        "recipe": name,
        "points": points,
        "metrics": metrics,
        "wall_s": time.perf_counter() - started[0],
        "cpu_s": time.process_time() - started[1],
        "settings": _plain(settings),
    }
    write_json(place.cell(name), cell)
    success = " ".join(f"{point['success']:.3f}" for point in points)
    print(f"{place.game} seed {place.seed} {name}: {success} ({cell['cpu_s']:.0f} CPU s)", flush=True)
