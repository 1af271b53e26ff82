"""Recipes: frozen settings that name one choice per plug-in point; any of them can be replaced by a run's settings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.recipes import dr_grpo, grpo, rloo
from envgym.trainer.settings import Recipe

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {"grpo": grpo.RECIPE, "dr_grpo": dr_grpo.RECIPE, "rloo": rloo.RECIPE}
)
"""Name -> recipe."""
