"""Suites: many evaluations in one file, as cells of models, envs, splits, searches and budgets.

Every cell is a run directory of its own in the folder `cells` of the suite's directory, so that it is resumed at the
episode, viewed and compared as any evaluation. `suite.json` keeps the settings: another suite is refused there.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from pydantic import Field, model_validator

from envgym.agents.evaluation.run import EvalResult, PolicyHolder, Progress, run_evaluation
from envgym.agents.settings import EnvSettings, EvalSettings
from envgym.config.plugins import Choice
from envgym.config.settings import Settings, build_settings, read_settings_file
from envgym.core.tasks import Split
from envgym.errors import RunError, SettingsError, unknown_name
from envgym.runs.changes import check_same
from envgym.runs.directory import check_labels, check_new, read_object
from envgym.runs.files import write_json

SHIPPED: Final = Path(__file__).with_name("suites")
"""The suites that come with the package, one YAML file each."""
_FILE: Final = "suite.json"
_CELLS: Final = "cells"
_EXTENDABLE: Final = ("tasks", "samples", "engine")
"""Settings that may change when a suite is resumed; fewer tasks or samples than a cell has are refused there."""


class SuiteModel(Settings):
    """A model of a suite."""

    name: str
    """As `--model` takes it: `tiny`, `smollm2`, a directory, a hub name, a run or one of its checkpoints."""
    agent: dict[str, Any] = Field(default_factory=dict)
    """Settings of the agent for this model, over those of the suite."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Settings of what samples it, over those of the suite, such as its `endpoint`."""

    @model_validator(mode="before")
    @classmethod
    def _read_bare_name(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data


class SuiteBudget(Settings):
    """How much an episode may spend."""

    agent: dict[str, Any] = Field(default_factory=dict)
    """Settings of the agent, such as `max_turn_tokens`."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Settings of the search, such as `budget: {tokens_generated: 4096}`."""


class SuiteSettings(Settings):
    """A suite: every model plays every env, split, search and budget."""

    name: str
    """Names the suite, and its directory `runs/suite-NAME`."""
    summary: str = ""
    """What it measures, in a line."""
    models: tuple[SuiteModel, ...] = ()
    """The models; a name alone is enough. `--model` replaces them."""
    envs: tuple[EnvSettings, ...] = Field(min_length=1)
    """The environments, with their settings; two of one id need a `name` each."""
    splits: tuple[Split, ...] = (Split.TEST,)
    """The splits of their tasks."""
    searches: tuple[Choice, ...] = (Choice(name="chain"),)
    """How answers are found."""
    budgets: Mapping[str, SuiteBudget] = Field(default_factory=lambda: {"default": SuiteBudget()})
    """Name -> budget."""
    tasks: int = Field(default=100, ge=1)
    """Distinct tasks of every cell."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task."""
    seed: int = 0
    """Of environments and sampling."""
    metrics: tuple[Choice, ...] = ()
    """What is measured beside success."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Further settings of every evaluation, such as `temperature` or `success_at`."""
    agent: dict[str, Any] = Field(default_factory=dict)
    """Settings of the agent; what is left out is that of the model's run, or the default."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Settings of what samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCell:
    """One evaluation of a suite."""

    name: str
    """Of its folder."""
    model: SuiteModel
    env: EnvSettings
    split: Split
    search: Choice
    budget: str


MakeSettings = Callable[..., EvalSettings]
"""Returns the settings of an evaluation, with what is left out as the run has it that its model names: the signature is
that of `envgym.api.eval_settings`."""


def read_suite(name: str, *, models: Sequence[str] = ()) -> SuiteSettings:
    """Read a suite.

    Args:
        name: a YAML file, or a suite that comes with the package.
        models: replace those of the file.

    Raises: SettingsError, UnknownName: no such suite, bad settings, no model, or cells of one name.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name}.yaml"
        if not path.is_file():
            names = [file.stem for file in sorted(SHIPPED.glob("*.yaml"))]
            raise unknown_name("suite", name, names, where="suites of envgym; a file of your own ends with .yaml")
    data = read_settings_file(path)
    suite = build_settings(SuiteSettings, {**data, **({"models": list(models)} if models else {})}, where=str(path))
    SettingsError.unless(suite.models, "models", "be given", "none", where=str(path), do="name a model with --model")
    check_labels((cell.name for cell in suite_cells(suite)), where=f"{path}, cells")
    return suite


def suite_cells(suite: SuiteSettings) -> list[SuiteCell]:
    """Return the cells, model by model; a name has the parts that differ between cells, and the env."""
    axes = (suite.models, suite.envs, suite.splits, suite.searches, suite.budgets)
    cells: list[SuiteCell] = []
    for model, env, split, search, budget in product(*axes):
        words = (model.name, env.label, split.value, _words(search), budget)
        parts = [word for word, axis in zip(words, axes, strict=True) if len(axis) > 1 or axis is suite.envs]
        name = "-".join(re.sub(r"[^\w.=-]+", "_", part).strip("_.") for part in parts)
        cells.append(SuiteCell(name=name, model=model, env=env, split=split, search=search, budget=budget))
    return cells


def _words(search: Choice) -> str:
    return "-".join([search.name, *(f"{key}={value}" for key, value in search.settings.items())])


def cell_settings(
    suite: SuiteSettings, cell: SuiteCell, directory: Path, *, tasks: int, make_settings: MakeSettings, trusted: bool
) -> EvalSettings:
    """Return the settings of a cell's evaluation, on so many tasks, in a folder of the suite's directory."""
    budget = suite.budgets[cell.budget]
    is_one_greedy_episode = suite.samples == 1 and cell.search.name == "chain"
    evaluation = {
        "temperature": 0.0 if is_one_greedy_episode else 1.0,
        **suite.evaluation,
        "tasks": tasks,
        "samples": suite.samples,
        "split": cell.split,
        "search": {**cell.search.model_dump(), **budget.search},
        "metrics": [choice.model_dump() for choice in suite.metrics],
    }
    settings = make_settings(
        cell.model.name,
        [{"id": cell.env.id}],
        run={"directory": str(directory / _CELLS / cell.name), "seed": suite.seed},
        agent={**suite.agent, **cell.model.agent, **budget.agent},
        engine={**suite.engine, **cell.model.engine},
        evaluation=evaluation,
        trusted=trusted,
        where=f"suite {suite.name}, cell {cell.name}",
    )
    # As the suite has it, whatever the settings of this env were in the run that made the model.
    return settings.model_copy(update={"envs": (cell.env,)})


def run_suite(
    suite: SuiteSettings,
    directory: Path,
    *,
    make_settings: MakeSettings,
    resume: bool = False,
    limit: int | None = None,
    trusted: bool = False,
    on_progress: Progress = lambda phase, done, total: None,
) -> dict[str, EvalResult]:
    """Play what is missing of a suite, cell by cell, and return the result of each by its name.

    Args:
        suite: what is evaluated.
        directory: of the suite.
        make_settings: makes the settings of a cell.
        resume: go on with the directory, whose suite must be this one, but for more tasks or samples.
        limit: play only the first so many tasks of every cell; None: all.
        trusted: enter the runs of models into the list of the user's own first.
        on_progress: called with (cell and phase, done, total).

    Raises: SettingsError, UnknownName, RunError: bad settings or directory; nothing has been sampled then. RunError: a
        cell stopped; what was finished is kept.
    """
    if limit is not None and limit < 1:
        raise SettingsError.of("limit", "be at least 1", limit, where=f"suite {suite.name}", do="raise it")
    tasks = suite.tasks if limit is None else min(limit, suite.tasks)
    make = partial(cell_settings, suite, directory=directory, tasks=tasks, make_settings=make_settings, trusted=trusted)
    settings = {cell.name: make(cell) for cell in suite_cells(suite)}
    for env in suite.envs:
        env.make().close()  # what is not installed is told before the first episode
    _begin(suite, directory, resume=resume)
    results: dict[str, EvalResult] = {}
    with closing(PolicyHolder()) as policies:  # a model is loaded once for all of its cells
        for name, of_cell in settings.items():
            is_begun = (of_cell.run.path / "run.json").exists()
            cell_progress = partial(_show_progress, on_progress, name)
            results[name] = run_evaluation(of_cell, resume=is_begun, on_progress=cell_progress, policies=policies)
    return results


def cells_of(directory: Path) -> list[Path]:
    """Return the run directories of a suite's directory; none where it is no suite's."""
    if not (directory / _FILE).is_file():
        return []
    return sorted(place.parent for place in (directory / _CELLS).glob("*/run.json"))


def read_recorded_suite(directory: Path) -> SuiteSettings:
    """Return the suite that a directory was begun with. Raises: RunError, SettingsError: there is none."""
    return build_settings(SuiteSettings, read_object(directory / _FILE), where=str(directory / _FILE))


def _begin(suite: SuiteSettings, directory: Path, *, resume: bool) -> None:
    path, ours = directory / _FILE, suite.model_dump(mode="json")
    if resume:
        do = "name the directory of a suite with --out"
        RunError.unless(path.is_file(), "suite", "have begun", f"no {_FILE}", where=str(directory), do=do)
        check_same(read_object(path), ours, where=directory, but=_EXTENDABLE)
    else:
        check_new(directory, another="choose another directory with --out")
        directory.mkdir(parents=True, exist_ok=True)
    write_json(path, ours)


def _show_progress(on_progress: Progress, name: str, phase: str, done: int, total: int) -> None:
    on_progress(f"{name}: {phase}", done, total)
