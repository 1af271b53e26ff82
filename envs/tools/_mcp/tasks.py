"""Where tasks come from: generators for each server and level, with servers held out for the test split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from envgym.authoring import TaskDraft
from envgym.authoring.sampler import Unsuitable
from envgym.authoring.sources import MAX_DRAWS, check_index, task_from_draft
from envgym.core.tasks import Split, Task, split_of
from envgym.envs.tools._mcp import calendar_tasks, file_tasks, knowledge_tasks, shop_tasks
from envgym.envs.tools._mcp.plans import find_flaw
from envgym.envs.tools._mcp.sampling import ServerSampler, TaskKind
from envgym.seeds import generator

WHERE = "tools/mcp-v0"
LEVELS = (1, 2, 3)
TASK_KINDS: Mapping[str, Mapping[int, Sequence[TaskKind]]] = MappingProxyType(
    {
        "files": file_tasks.TASK_KINDS,
        "calendar": calendar_tasks.TASK_KINDS,
        "shop": shop_tasks.TASK_KINDS,
        "knowledge": knowledge_tasks.TASK_KINDS,
    }
)
"""Server -> level -> kinds of tasks."""


@dataclass(frozen=True, slots=True)
class McpTasks:
    """Tasks of some servers without end."""

    servers: tuple[str, ...]
    levels: tuple[int, ...]
    held_out: tuple[str, ...]
    """Servers of the test split alone; without any, tasks are held out by their content."""

    def size(self, split: Split) -> None:
        """Return None: the supply does not end."""
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw until a task falls into `split`. Raises: InvalidInput: a negative index."""
        check_index(index, None, f"{split} of {WHERE}")
        names = [name for name in self.servers if name not in self.held_out]
        if self.held_out and split is Split.TEST:
            names = [*self.held_out]
        draws = generator(WHERE, split.value, index)
        server, level = names[index % len(names)], self.levels[index // len(names) % len(self.levels)]
        for _ in range(MAX_DRAWS):
            draft = draw_task(draws, server, level)
            if self.held_out or split_of(draft.payload) is split:
                return task_from_draft(draft, split, f"{split}/{index}")
        raise AssertionError("a fifth of the tasks are held out")


def draw_task(draws: np.random.Generator, server: str, level: int) -> TaskDraft:
    """Draw a task on a server."""
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
