"""Where tasks come from: generators for each server and level, with servers held out for the test split."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from envgym.authoring import TaskDraft
from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.envs.families import DrawnTask, FamilyTasks, choose_families
from envgym.envs.tools._mcp import calendar_tasks, file_tasks, knowledge_tasks, shop_tasks
from envgym.envs.tools._mcp.plans import find_flaw
from envgym.envs.tools._mcp.sampling import ServerSampler, TaskKind

WHERE = "tools/mcp-v0"
TASK_KINDS: Mapping[str, Mapping[int, Sequence[TaskKind]]] = MappingProxyType(
    {
        "files": file_tasks.TASK_KINDS,
        "calendar": calendar_tasks.TASK_KINDS,
        "shop": shop_tasks.TASK_KINDS,
        "knowledge": knowledge_tasks.TASK_KINDS,
    }
)
"""Server -> level -> kinds of tasks."""


def mcp_tasks(servers: str | Sequence[str], levels: int | Sequence[int], held_out: str | Sequence[str]) -> FamilyTasks:
    """Return the tasks that an environment's arguments ask for. Raises: UnknownName, InvalidInput."""
    return choose_families(
        servers,
        levels,
        held_out,
        all_families=TASK_KINDS,
        draw=_draw,
        where=WHERE,
        nouns=("server", "servers"),
        do="name more servers, or pass held_out=()",
        is_split_by_family=True,
    )


def _draw(sampler: Sampler, server: str, level: int) -> DrawnTask:
    draft = draw_task(sampler.rng, server, level)
    return DrawnTask(draft, draft.payload)


def draw_task(draws: np.random.Generator, server: str, level: int) -> TaskDraft:
    kinds = TASK_KINDS[server][level]
    kind = kinds[int(draws.integers(len(kinds)))]
    while True:
        sampler = ServerSampler(draws)
        try:
            plan = kind(sampler)
        except Unsuitable:
            continue
        if not find_flaw(server, sampler.tables, plan):
            break
    wording = int(draws.integers(len(plan.texts)))
    return TaskDraft(
        prompt=plan.texts[wording],
        payload={
            "server": server,
            "tables": sampler.tables,
            "goal": plan.goal,
            "calls": [[item.tool, item.arguments] for item in plan.calls],
        },
        metadata={"server": server, "level": level, "kind": kind.__name__, "wording": wording},
    )
