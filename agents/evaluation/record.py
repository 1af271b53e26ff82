"""The record of an evaluation: rewards by task, endings and costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgym.agents.evaluation.metrics import compute_metrics
from envgym.agents.evaluation.plan import EvalPlan
from envgym.core.endings import Ending
from envgym.core.rewards import Invalid, Reward
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Cost
from envgym.stats import successes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """The result of an evaluation in plain numbers; a run directory keeps it as JSON."""

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
    """Mean per episode; after a search, all that the search spent."""
    seconds: float
    """Wall time of the whole evaluation."""
    search: str = "chain"
    """The search that chose each episode; costs are those of the whole search."""
    selected_by: str | None = None
    """The scorer that chose it among several; None: there was one."""
    is_oracle: bool = False
    """True where that scorer knows what no agent can see."""
    uses_ending: bool = False
    """True where how an episode ended came before the scorer."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the metrics that the settings choose, called `metric/<name>`."""

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
            "uses_ending": self.uses_ending,
            "metrics": dict(self.metrics),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "EvalRecord":
        """Read what `to_json` wrote."""
        return cls(**{**data, "rewards": {task_id: tuple(rewards) for task_id, rewards in data["rewards"].items()}})


def record_evaluation(
    plan: EvalPlan, trees: Sequence[Tree], *, step: int, temperature: float, seconds: float
) -> EvalRecord:
    """Return the record of the plan's episodes, which are in its order."""
    episodes = [episode for tree in trees for episode in trajectories(tree)]
    rewards: dict[str, list[float | None]] = {task.id: [] for task in plan.tasks}
    for episode in episodes:
        rewards[episode.tree.task_id].append(_value(episode.reward))
    cost = sum((tree.total_cost for tree in trees), Cost())
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
        uses_ending=plan.selection is not None and plan.selection.uses_ending,
        metrics=compute_metrics(plan.metrics, episodes),
    )


def _value(reward: Reward) -> float | None:
    return None if isinstance(reward, Invalid) else reward.value


def _endings(trees: Sequence[Tree]) -> Counter[Ending]:
    return Counter(episode.ending for tree in trees for episode in trajectories(tree))
