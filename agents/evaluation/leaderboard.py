"""A leaderboard of models by environments: success with intervals and invalid rates, and ranks that respect ties."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2

from envgym.agents.evaluation.compare import ModelEvaluation, pair_evaluations, read_evaluations
from envgym.agents.evaluation.suite import cells_of, read_recorded_suite, suite_cells
from envgym.errors import InvalidInput
from envgym.runs.directory import RunDirectory
from envgym.runs.files import write_atomic
from envgym.stats import Estimate, adjusted_wald_interval
from envgym.stats.power import DEFAULT_ALPHA

_TEMPLATES: Final = Path(__file__).with_name("templates")


class LeaderboardEntry(NamedTuple):
    """An evaluation, and where it stands."""

    model: str
    column: str
    evaluation: ModelEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardCell:
    """A model on an environment."""

    success: Estimate | None
    """None: no episode was valid."""
    invalid_rate: float
    rank: int | None
    """1 + the number of models that are better by their paired interval's evidence; models of one group share it."""
    source: str
    """Run that it was read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardRow:
    """A model."""

    model: str
    cells: Mapping[str, LeaderboardCell]
    """By column; a column without the model is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """Models by environments."""

    columns: Mapping[str, str]
    """Environment -> number of tasks and samples in words."""
    rows: tuple[LeaderboardRow, ...]
    """Models with the most columns first, then by their mean success."""


def read_entries(paths: Iterable[Path]) -> list[LeaderboardEntry]:
    """Read the evaluations of runs and of suites. Raises: RunError: a directory that is neither, or unreadable."""
    return [entry for path in paths for entry in (_entries_of_suite(path) if cells_of(path) else _entries_of_run(path))]


def _entries_of_run(path: Path) -> list[LeaderboardEntry]:
    run = RunDirectory.open(path.parent.parent if path.is_file() else path)
    config = run.config
    model = run.name if "optim" in config else _model(config["model"])
    return [LeaderboardEntry(_with_step(model, item), title, item) for title, item in read_evaluations(path).items()]


def _model(config: Mapping[str, Any]) -> str:
    """Return a model's name; of a checkpoint, its run and step."""
    path = Path(config.get("adapter") or config["name"])
    parts = path.parts
    if "checkpoints" not in parts:
        return str(config["name"])
    place = parts.index("checkpoints")
    return "/".join(parts[max(place - 1, 0) : place] + parts[place + 1 : place + 2])


def _with_step(model: str, evaluation: ModelEvaluation) -> str:
    """Add the train steps that a training run had taken; a checkpoint's name has them."""
    return f"{model}, {evaluation.step} train steps" if evaluation.step and "step-" not in model else model


def _entries_of_suite(path: Path) -> list[LeaderboardEntry]:
    """Return the finished cells of a suite; a column is what differs but for the model."""
    suite = read_recorded_suite(path)
    begun = {cell.name: cell for cell in cells_of(path)}
    single = suite.model_copy(update={"models": suite.models[:1]})
    columns = [cell.name for cell in suite_cells(single)]
    cells = suite_cells(suite)
    entries: list[LeaderboardEntry] = []
    for number, cell in enumerate(cells):
        if cell.name in begun:
            for item in read_evaluations(begun[cell.name]).values():
                entries.append(LeaderboardEntry(cell.model.name, columns[number % len(columns)], item))
    return entries


def build_leaderboard(entries: Sequence[LeaderboardEntry]) -> Leaderboard:
    """Return the leaderboard of some evaluations.

    Raises: InvalidInput: none, two of a model in one column, or other tasks, samples or thresholds in one column.
    """
    InvalidInput.unless(entries, "evaluations", "be at least one", "none", where="leaderboard", do="evaluate first")
    columns: dict[str, dict[str, ModelEvaluation]] = {}
    for entry in entries:
        column = columns.setdefault(entry.column, {})
        if entry.model in column:
            got, do = f"{column[entry.model].name} and {entry.evaluation.name}", "leave one of them out"
            where = f"{entry.model}, {entry.column}"
            raise InvalidInput.of("evaluations", "be one for a model and an environment", got, where=where, do=do)
        column[entry.model] = entry.evaluation
    ranks = {name: rank_models(column) for name, column in columns.items()}
    models = list(dict.fromkeys(entry.model for entry in entries))
    rows = [
        LeaderboardRow(
            model=model,
            cells={
                name: LeaderboardCell(
                    success=(item := column[model]).success,
                    invalid_rate=item.invalid_rate,
                    rank=ranks[name].get(model),
                    source=item.name,
                )
                for name, column in columns.items()
                if model in column
            },
        )
        for model in models
    ]
    sizes = {name: next(iter(column.values())) for name, column in columns.items()}
    words = {name: f"{len(item.successes)} tasks, {item.samples} sample(s)" for name, item in sizes.items()}
    return Leaderboard(columns=words, rows=tuple(sorted(rows, key=_order)))


def _order(row: LeaderboardRow) -> tuple[int, float]:
    values = [cell.success.value for cell in row.cells.values() if cell.success is not None]
    return -len(values), -sum(values) / max(len(values), 1)


def rank_models(column: Mapping[str, ModelEvaluation]) -> dict[str, int]:
    """Return model -> rank: from the best down, a model joins the group above unless it is worse than the group's best.

    It is worse where the interval of the paired difference excludes 0. The intervals hold for all models of the column
    together (Bonferroni). A model without a valid episode has no rank.

    Raises: InvalidInput: the evaluations are of other tasks, samples or thresholds.
    """
    means = {model: item.success.value for model, item in column.items() if item.success is not None}
    order = sorted(means, key=lambda model: -means[model])
    level = 1 - DEFAULT_ALPHA / max(len(order) - 1, 1)
    ranks: dict[str, int] = {}
    leader = ""
    for place, model in enumerate(order):
        if place:
            _, differences = pair_evaluations(column[leader], column[model])
        if not place or adjusted_wald_interval(differences, level=level).high < 0:
            leader, rank = model, place + 1
        ranks[model] = rank
    return ranks


def write_leaderboard(leaderboard: Leaderboard, path: Path) -> None:
    """Write the leaderboard as one page that needs nothing else."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    write_atomic(path, environment.get_template("leaderboard.html.jinja").render(board=leaderboard))
