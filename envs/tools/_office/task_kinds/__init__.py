"""The kinds of tasks, by level: each draws a request, the golden state and calls that reach it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from envgym.envs.tools._office.plans import TaskPlan
from envgym.envs.tools._office.sampler import OfficeSampler
from envgym.envs.tools._office.task_kinds import bulk, joins, rules, single

TaskKind = Callable[[OfficeSampler], TaskPlan]

TASK_KINDS: Mapping[int, tuple[TaskKind, ...]] = MappingProxyType(
    {1: single.TASK_KINDS, 2: joins.TASK_KINDS, 3: bulk.TASK_KINDS, 4: rules.TASK_KINDS}
)
"""Level -> kinds of tasks."""
