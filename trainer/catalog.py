"""The plug-ins of the trainer: every choice of a run that its method and its reports make."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from envgym.plugins import PluginKind, read_kinds

if TYPE_CHECKING:
    from envgym.trainer.methods.corrections.base import Correction
    from envgym.trainer.methods.losses.aggregate import Aggregation
    from envgym.trainer.methods.losses.base import PolicyLoss
    from envgym.trainer.methods.losses.kl import KlEstimator
    from envgym.trainer.methods.protocols import Credit, CriticCredit, Curriculum, Filter, Shaping
    from envgym.trainer.metrics.callbacks import Callback
    from envgym.trainer.recipes import RecipeEntry
    from envgym.trainer.workflows.demonstrations import DemonstrationSource

KINDS: Final = read_kinds(Path(__file__).with_suffix(".toml"))
"""Name -> kind."""

CURRICULUM: Final[PluginKind["Curriculum"]] = KINDS["curriculum"]
FILTER: Final[PluginKind["Filter"]] = KINDS["filter"]
SHAPING: Final[PluginKind["Shaping"]] = KINDS["shaping"]
CREDIT: Final[PluginKind["Credit | CriticCredit"]] = KINDS["credit"]
LOSS: Final[PluginKind["PolicyLoss"]] = KINDS["loss"]
CORRECTION: Final[PluginKind["Correction"]] = KINDS["correction"]
KL_ESTIMATOR: Final[PluginKind["KlEstimator"]] = KINDS["kl_estimator"]
AGGREGATION: Final[PluginKind["Aggregation"]] = KINDS["aggregation"]
DEMONSTRATIONS: Final[PluginKind["DemonstrationSource"]] = KINDS["demonstrations"]
RECIPE: Final[PluginKind["RecipeEntry"]] = KINDS["recipe"]
TRACKER: Final[PluginKind["Callback"]] = KINDS["tracker"]
