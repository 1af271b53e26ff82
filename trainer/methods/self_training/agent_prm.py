"""AgentPRM: a process-reward model of a policy's turns, and a policy that learns from it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from envgym.config.settings import Settings
from envgym.trainer.methods.self_training.base import Sections


class AgentPrmRounds(Settings):
    """AgentPRM: the policy learns from a process-reward model of its own turns. Source: 2502.10325.

    With `update="dpo"`, the paper's, turns that were sampled in one state are ranked by the scorer's value of them, and
    the policy is drawn to the better one by DPO against the policy of the round before. With `"reinforce"` the value of
    every turn is its reward, in place of the env's, compared with those of its turn in the group, beside a KL term.

    Deviation: the states are those of trees that the policy grows, in each of which several turns are sampled, instead
    of those that the round before has recorded.
    """

    update: Literal["dpo", "reinforce"] = "dpo"
    """How the policy learns."""
    beta: float = Field(default=0.03, gt=0)
    """Of DPO: how far the policy may leave that of the round before: the larger, the less."""
    search: dict[str, Any] = Field(default_factory=lambda: {"name": "random_expand", "nodes": 2, "rounds": 1})
    """Of DPO: how several turns come to be sampled in one state."""
    kl_coef: float = Field(default=0.03, ge=0)
    """Of reinforcement: weight of the KL term to the policy of the round before."""
    sections: dict[str, Any] = Field(default_factory=dict)
    """Further sections of the policy's runs, such as `optim`."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Learn the mean outcome of every turn from independent episodes."""
        return {"credit": {"name": "agent_prm"}, "search": {"name": "chain"}}

    def policy_sections(self, scorer: Path) -> Sections:
        """Learn from the scorer's values."""
        return {
            "sft": None,
            "annotate": [{"name": "process_reward", "model": "scorer"}],
            "models": {"scorer": {"kind": {"name": "critic", "run": str(scorer)}}},
            "filter": {"name": "keep_all"},
            **(self._preferences() if self.update == "dpo" else self._rewards()),
            **self.sections,
        }

    def _preferences(self) -> Sections:
        return {
            "search": self.search,
            "credit": {"name": "annotated_turns", "annotation": "process"},
            "loss": {"name": "step_dpo", "by": "advantage", "beta": self.beta},
            "objective": {"aggregation": "token-sum"},
        }

    def _rewards(self) -> Sections:
        return {
            "shaping": {"name": "annotated", "annotation": "process", "level": "turn", "instead": True},
            "credit": {"name": "scrl"},
            "objective": {"kl_coef": self.kl_coef},
        }
