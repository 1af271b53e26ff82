"""Recipes, read from `recipes.yaml`: a paper is one choice per plug-in point; a run's settings replace any of them."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from envgym.settings import read_settings_file


class RecipeEntry(NamedTuple):
    """One recipe."""

    summary: str
    """The paper, and how the recipe deviates from it."""
    choices: Mapping[str, Any]
    """Sections of a run's settings; what is left out keeps its default."""


_ROWS: Final = read_settings_file(Path(__file__).with_suffix(".yaml"))
RECIPES: Final = SimpleNamespace(**{name: RecipeEntry(**row) for name, row in _ROWS.items()})
"""The recipes as attributes, so that each has an import path."""
