"""The plug-ins of the trainer: every choice of a run that its method and its reports make; and the recipes.

A recipe is one choice per plug-in point, after a paper; a run's settings replace any of them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from envgym.plugins import PluginKind, read_kinds
from envgym.settings import read_settings_file

if TYPE_CHECKING:
    from envgym.trainer.methods.annotators.base import Annotator, Model
    from envgym.trainer.methods.controllers.base import Controller
    from envgym.trainer.methods.corrections.base import Correction
    from envgym.trainer.methods.losses.aggregate import Aggregation
    from envgym.trainer.methods.losses.base import PolicyLoss
    from envgym.trainer.methods.losses.kl import KlEstimator
    from envgym.trainer.methods.protocols import Allocator, BatchCredit, Credit, Curriculum, Filter, Shaping
    from envgym.trainer.methods.replay.base import Replay
    from envgym.trainer.methods.schedules import Schedule
    from envgym.trainer.methods.self_training.base import SelfTrainingPlan
    from envgym.trainer.methods.weights.base import TokenWeights
    from envgym.trainer.metrics.callbacks import Callback
    from envgym.trainer.workflows.demonstrations import DemonstrationSource


class RecipeEntry(NamedTuple):
    """One recipe of `recipes.yaml`."""

    summary: str
    """The paper, and how the recipe deviates from it."""
    choices: Mapping[str, Any]
    """Sections of a run's settings; what is left out keeps its default."""


_RECIPE_ROWS: Final = read_settings_file(Path(__file__).with_name("recipes.yaml"))
RECIPES: Final = SimpleNamespace(**{name: RecipeEntry(**row) for name, row in _RECIPE_ROWS.items()})
"""The recipes as attributes, so that each has an import path."""

KINDS: Final = read_kinds(Path(__file__).with_suffix(".toml"))
"""Name -> kind."""

ALLOCATOR: Final[PluginKind["Allocator"]] = KINDS["allocator"]
CURRICULUM: Final[PluginKind["Curriculum"]] = KINDS["curriculum"]
MODEL: Final[PluginKind["Model"]] = KINDS["model"]
ANNOTATOR: Final[PluginKind["Annotator"]] = KINDS["annotator"]
FILTER: Final[PluginKind["Filter"]] = KINDS["filter"]
SHAPING: Final[PluginKind["Shaping"]] = KINDS["shaping"]
REPLAY: Final[PluginKind["Replay"]] = KINDS["replay"]
CREDIT: Final[PluginKind["Credit | BatchCredit"]] = KINDS["credit"]
WEIGHTS: Final[PluginKind["TokenWeights"]] = KINDS["weights"]
LOSS: Final[PluginKind["PolicyLoss"]] = KINDS["loss"]
CORRECTION: Final[PluginKind["Correction"]] = KINDS["correction"]
KL_ESTIMATOR: Final[PluginKind["KlEstimator"]] = KINDS["kl_estimator"]
SCHEDULE: Final[PluginKind["Schedule"]] = KINDS["schedule"]
AGGREGATION: Final[PluginKind["Aggregation"]] = KINDS["aggregation"]
CONTROLLER: Final[PluginKind["Controller"]] = KINDS["controller"]
DEMONSTRATIONS: Final[PluginKind["DemonstrationSource"]] = KINDS["demonstrations"]
SELF_TRAINING: Final[PluginKind["SelfTrainingPlan"]] = KINDS["self_training"]
RECIPE: Final[PluginKind[RecipeEntry]] = KINDS["recipe"]
TRACKER: Final[PluginKind["Callback"]] = KINDS["tracker"]
