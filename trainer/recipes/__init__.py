"""Recipes: frozen settings that name one choice per plug-in point; any of them can be replaced by a run's settings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from envgym.trainer.recipes import (
    arpo,
    dapo,
    deep_search,
    dr_grpo,
    gigpo,
    grpo,
    mt_grpo,
    rloo,
    starpo_s,
    tree_grpo,
    tree_rl,
    turn_grpo,
)
from envgym.trainer.settings import Recipe

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "grpo": grpo.RECIPE,
        "dr_grpo": dr_grpo.RECIPE,
        "rloo": rloo.RECIPE,
        "dapo": dapo.RECIPE,
        "turn_grpo": turn_grpo.RECIPE,
        "mt_grpo": mt_grpo.RECIPE,
        "gigpo": gigpo.RECIPE,
        "starpo_s": starpo_s.RECIPE,
        "tree_grpo": tree_grpo.RECIPE,
        "tree_rl": tree_rl.RECIPE,
        "arpo": arpo.RECIPE,
        "deep_search": deep_search.RECIPE,
    }
)
"""Name -> recipe."""
