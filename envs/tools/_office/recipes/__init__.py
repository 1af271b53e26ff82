"""The kinds of tasks, by level: each draws a request, the golden state and calls that reach it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from envgym.envs.tools._office.plans import Plan
from envgym.envs.tools._office.recipes import bulk, joins, rules, single
from envgym.envs.tools._office.scene import Scene

Recipe = Callable[[Scene], Plan]

RECIPES: Mapping[int, tuple[Recipe, ...]] = MappingProxyType(
    {1: single.RECIPES, 2: joins.RECIPES, 3: bulk.RECIPES, 4: rules.RECIPES}
)
"""Level -> kinds of tasks."""
