"""Evaluate a policy on held-out tasks: the episodes, and what they say, counted by task.

The tasks, their order and every seed are a function of the plan alone, so two evaluations of one plan are paired.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgym.agents.agent import Agent
from envgym.agents.driver import run_episodes
from envgym.agents.episode import EpisodeJob
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.search import Selection
from envgym.core.endings import Ending
from envgym.core.rewards import Invalid, Reward
from envgym.core.tasks import Split, Task, TaskSource, check_ids, distinct_tasks
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.env import Env
from envgym.seeds import derive_seed
from envgym.stats import successes_of

ORACLE_SELECTED = "oracle-selected"
"""Marks numbers of episodes that were chosen by what no agent can see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What is evaluated; fixed before the first episode."""

    env_id: str
    make_env: Callable[[], Env[Any]]
    tasks: tuple[Task, ...]
    samples: int
    """Episodes per task."""
    seed: int
    label: str = "held-out"
    """Evaluations of one label share tasks and sampling, and may be compared."""
    success_at: float = 1.0
    """An episode succeeds when its reward is at least this."""
    search: str = "chain"
    """How an episode is found."""
    selection: Selection | None = None
    """By what it is chosen where a search found several."""

    @property
    def title(self) -> str:
        """The label, and what must be known to read the numbers right."""
        return (
            f"{self.label} {ORACLE_SELECTED}" if self.selection is not None and self.selection.is_oracle else self.label
        )

    def jobs(self) -> list[EpisodeJob]:
        """Return the episodes, task by task."""
        return [
            EpisodeJob(
                make_env=self.make_env,
                task=task,
                seed=derive_seed(self.seed, self.env_id, task.key, sample),  # alike alone and in a mixture
                tree_id=f"{self.label}/{task.id}/{sample}",
                env_id=self.env_id,
            )
            for task in self.tasks
            for sample in range(self.samples)
        ]


def held_out_tasks(source: TaskSource, count: int, *, split: Split = Split.TEST) -> tuple[Task, ...]:
    """Return the first `count` tasks of different content; fewer where the split ends before.

    Raises: InvalidInput: two of them have one id.
    """
    size = source.size(split)
    found: dict[str, Task] = {}
    if size is None:
        found = {task.key: task for task in distinct_tasks(source, split, count)}
    for index in range(size or 0):
        if len(found) == count:
            break
        task = source.task(split, index)
        found.setdefault(task.key, task)
    check_ids(found.values(), where=f"{split} split", do="give each task an id of its own in the task source")
    return tuple(found.values())


async def evaluate(
    plan: EvalPlan,
    agent: Agent,
    policy: Policy,
    *,
    sampling: Sampling,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None = None,
) -> list[Tree]:
    """Run the plan's episodes and return them in its order.

    Args:
        plan: what to evaluate.
        agent: how the policy acts.
        policy: who acts.
        sampling: temperature 0 is greedy.
        concurrency: episodes under way at a time.
        on_finished: called with every episode as it ends.
    """
    return await run_episodes(
        plan.jobs(), agent, policy, sampling=sampling, concurrency=concurrency, on_finished=on_finished
    )


Play = Callable[[Sequence[EpisodeJob]], Coroutine[None, None, list[Tree]]]
"""Runs jobs and returns their trees in the order of the jobs."""


async def complete(plan: EvalPlan, play: Play, finished: Iterable[Tree]) -> list[Tree]:
    """Play what an interrupted evaluation left out of its plan, and return all episodes in the plan's order."""
    done = {tree.id: tree for tree in finished}
    jobs = plan.jobs()
    missing = [job for job in jobs if job.tree_id not in done]
    done.update(zip((job.tree_id for job in missing), await play(missing), strict=True))
    return [done[job.tree_id] for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """What an evaluation found, in plain numbers; a run directory keeps it as JSON."""

    env_id: str
    label: str
    step: int
    """Train steps done before it."""
    temperature: float
    success_at: float
    rewards: Mapping[str, tuple[float | None, ...]]
    """Task id -> reward of each sample; None where it is invalid."""
    endings: Mapping[str, int]
    """Ending -> episodes."""
    costs: Mapping[str, float]
    """Mean per episode; where a search found it, all that the search spent."""
    seconds: float
    """Wall time of the whole evaluation."""
    search: str = "chain"
    """How an episode was found; costs are those of the whole search."""
    selected_by: str | None = None
    """By what it was chosen among several; None: there was one."""
    is_oracle: bool = False
    """True where that knows what no agent can see."""

    @property
    def successes(self) -> dict[str, list[bool | None]]:
        """Task id -> whether each sample succeeded; None where it is invalid."""
        return successes_of(self.rewards, self.success_at)

    def to_json(self) -> dict[str, Any]:
        """Write the record as plain JSON types."""
        return {
            "env_id": self.env_id,
            "label": self.label,
            "step": self.step,
            "temperature": self.temperature,
            "success_at": self.success_at,
            "rewards": {task_id: list(rewards) for task_id, rewards in self.rewards.items()},
            "endings": dict(self.endings),
            "costs": dict(self.costs),
            "seconds": self.seconds,
            "search": self.search,
            "selected_by": self.selected_by,
            "is_oracle": self.is_oracle,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "EvalRecord":
        """Read what `to_json` wrote."""
        return cls(**{**data, "rewards": {task_id: tuple(rewards) for task_id, rewards in data["rewards"].items()}})


def record_evaluation(
    plan: EvalPlan, trees: Sequence[Tree], *, step: int, temperature: float, seconds: float
) -> EvalRecord:
    """Count what the plan's episodes, in its order, say."""
    episodes = [episode for tree in trees for episode in trajectories(tree)]
    rewards: dict[str, list[float | None]] = {task.id: [] for task in plan.tasks}
    for episode in episodes:
        rewards[episode.tree.task_id].append(_value(episode.reward))
    cost = sum((spent_on(tree) for tree in trees), Cost())
    size = max(len(episodes), 1)
    return EvalRecord(
        env_id=plan.env_id,
        label=plan.title,
        step=step,
        temperature=temperature,
        success_at=plan.success_at,
        rewards={task_id: tuple(values) for task_id, values in rewards.items()},
        endings={ending.value: count for ending, count in _endings(trees).items()},
        costs={
            "turns": sum(len(episode.turns) for episode in episodes) / size,
            "tokens_generated": cost.tokens_generated / size,
            "tokens_prefilled": cost.tokens_prefilled / size,
            "tool_calls": cost.tool_calls / size,
            "env_steps": cost.env_steps / size,
            "seconds": cost.seconds / size,
        },
        seconds=seconds,
        search=plan.search,
        selected_by=None if plan.selection is None else plan.selection.by,
        is_oracle=plan.selection is not None and plan.selection.is_oracle,
    )


def spent_on(tree: Tree) -> Cost:
    """Return all that a tree cost; a search knows of replays that are on no edge."""
    root = tree.nodes[0]
    return tree.cost if root.stats is None else root.edge.cost + root.stats.spent


def _value(reward: Reward) -> float | None:
    return None if isinstance(reward, Invalid) else reward.value


def _endings(trees: Sequence[Tree]) -> Counter[Ending]:
    return Counter(episode.ending for tree in trees for episode in trajectories(tree))
