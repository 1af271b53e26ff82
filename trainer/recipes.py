"""The recipes: one choice for each plug-in point, after a paper. A run's settings replace any of them."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from envgym.config.plugins import PluginKind
from envgym.config.settings import read_settings_file
from envgym.trainer.tables import KINDS


class RecipeEntry(NamedTuple):
    """One recipe of `recipes.yaml`."""

    summary: str
    """The paper, and how the recipe deviates from it."""
    choices: Mapping[str, Any]
    """Sections of a run's settings. A section that is not listed keeps its default."""


_RECIPE_ROWS: Final = read_settings_file(Path(__file__).with_suffix(".yaml"))
RECIPES: Final = SimpleNamespace(**{name: RecipeEntry(**row) for name, row in _RECIPE_ROWS.items()})
"""The recipes as attributes, so that each has an import path."""
RECIPE: Final[PluginKind[RecipeEntry]] = KINDS["recipe"]
