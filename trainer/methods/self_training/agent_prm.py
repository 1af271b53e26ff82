"""AgentPRM: a process-reward model of a policy's turns, and a policy that learns from it."""

from pathlib import Path
from typing import Any

from pydantic import Field

from envgym.settings import Settings
from envgym.trainer.methods.self_training.base import Sections


class AgentPrmRounds(Settings):
    """AgentPRM: the policy learns by reinforcement from a process-reward model of its own turns. Source: 2502.10325.

    The scorer's value of every turn is the turn's reward, in place of the env's, and is compared with those of the same
    turn in the group; a KL term holds the policy to that of the round before. Deviation: the paper's policy step is
    online DPO on two samples a state.
    """

    kl_coef: float = Field(default=0.03, ge=0)
    """Weight of the KL term."""
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
            "shaping": {"name": "annotated", "annotation": "process", "level": "turn", "instead": True},
            "filter": {"name": "keep_all"},
            "credit": {"name": "scrl"},
            "objective": {"kl_coef": self.kl_coef},
            **self.sections,
        }
