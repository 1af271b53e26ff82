"""What one turn was, and what it cost."""

from dataclasses import dataclass

from envgym.core.messages import Action, Observation
from envgym.core.rewards import ZERO, Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Counted spending; costs add."""

    tokens_generated: int = 0
    tokens_prefilled: int = 0
    """Prompt tokens that the engine had to compute (not served from its cache)."""
    tool_calls: int = 0
    env_steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """Add two costs part by part."""
        return Cost(
            tokens_generated=self.tokens_generated + other.tokens_generated,
            tokens_prefilled=self.tokens_prefilled + other.tokens_prefilled,
            tool_calls=self.tool_calls + other.tool_calls,
            env_steps=self.env_steps + other.env_steps,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The env's side of a finished turn; lives on the node that ends the turn."""

    action: Action
    observation: Observation
    reward: Reward = ZERO
    tool_errors: int = 0
    """Calls that were malformed or that a tool refused."""
